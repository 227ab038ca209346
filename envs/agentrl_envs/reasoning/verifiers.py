"""reasoning-gym's verifiers in processes of their own, which can be killed."""

from typing import Any

from agentrl.runtime.scope import shared
from agentrl.task import Task
from agentrl_envs.adapters.verdict_pool import VerdictPool
from agentrl_envs.reasoning.family import ReasoningFamily


class VerifierPool(VerdictPool):
    """Workers forked from one process that has imported reasoning-gym."""

    def __init__(self, **limits: Any) -> None:
        """Start nothing yet; `limits` are those of `VerdictPool`."""
        super().__init__("reasoning", **limits)

    @classmethod
    async def find_shared(cls) -> "VerifierPool | None":
        """Return the pool that a run's environments share; None outside of a run."""

        async def make() -> VerifierPool:
            return cls()

        return await shared("verifiers", make)

    async def judge(self, family: ReasoningFamily, task: Task, answer: str) -> float:
        """Return a verifier's verdict; raise `VerifierError` for one that gives none."""
        params = {
            "settings": family.settings,
            "question": task.prompt,
            "reference": task.answer,
            "entry": task.data["entry"],
            "answer": answer,
        }
        where = f"the verifier of {family.name!r} on an answer of {len(answer)} characters"
        return await self.ask(params, where)
