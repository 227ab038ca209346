"""Equality of mathematical answers by math-verify, in processes that can be killed."""

from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.rewards import last_text
from agentrl.runtime.extras import find_missing
from agentrl.runtime.scope import shared
from agentrl.task import Task
from agentrl_envs.adapters.verdict_pool import VerdictPool
from agentrl_envs.dataset.final_answers import final_answer, normalise, reference_answers

MODULE = "math_verify"
ANSWER_CHARACTERS = 2_000
"""Characters of an answer; a longer one is wrong, and nothing reads it."""


def find_missing_math() -> str:
    """Return the reason why no mathematics can be judged here, or an empty string."""
    return next(find_missing("reward: math", MODULE), "")


class MathReward:
    """Pays 1.0 for a final answer that math-verify finds equal to a reference, else 0.0.

    An answer that is the reference, both normalised, is right without it.
    """

    def __init__(self) -> None:
        if fault := find_missing_math():
            raise ConfigError(fault)
        self._owned: VerdictPool | None = None

    async def __call__(self, task: Task, messages: Sequence[Message]) -> float:
        """Return the reward. Raises `VerifierError` where there is no verdict."""
        answer = final_answer(last_text(messages))
        references = reference_answers(task.answer)
        if any(normalise(answer) == normalise(reference) for reference in references):
            return float(bool(answer))
        if not answer or len(answer) > ANSWER_CHARACTERS:
            return 0.0
        pool = await self._find_pool()
        where = f"math-verify, on an answer of {len(answer)} characters to task {task.id!r}"
        return await pool.ask({"references": list(references), "answer": answer}, where)

    async def close(self) -> None:
        """End the processes of its own."""
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()

    async def _find_pool(self) -> VerdictPool:
        async def make() -> VerdictPool:
            return make_pool()

        pool = await shared("math verdicts", make)
        if pool is None:
            pool = self._owned = self._owned or make_pool()
        return pool


def make_pool(**limits: Any) -> VerdictPool:
    """Return a pool of workers that import math-verify; `limits` are those of `VerdictPool`."""
    return VerdictPool("math", packages=(MODULE, "latex2sympy2_extended", "antlr4"), **limits)
