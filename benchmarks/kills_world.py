"""A world whose rewards and failures are a function of its seed and of what it is told."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from agentrl.env import Action, BaseEnv, ForkStrategy, Info, Observation, Step, say
from agentrl.message import Message
from agentrl.task import Split, Task


class Digest(BaseEnv):
    """Answers with a digest of all it has heard; the last one decides about the reward."""

    def __init__(self, *, fails: int = 0, fork: ForkStrategy = "copy") -> None:
        """`fails` of 16 trajectories raise at their first step."""
        self.fork_strategy = fork
        self._fails = fails
        self._heard = b""
        self._turns = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield a dozen tasks."""
        return [Task(prompt=f"{split} {number}", split=split) for number in range(12)]

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Say anything: no answer is better."""
        return say(f"{len(seen)}")

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin; the seed decides about the answers, not about the opening."""
        task = (options or {})["task"]
        self._heard, self._turns = _digest(f"{seed} {task.prompt}".encode()), 0
        return Observation((Message("user", task.prompt),), ()), {}

    async def step(self, action: Action) -> Step:
        """Answer one message."""
        if self._turns == 0 and self._heard[0] % 16 < self._fails:
            raise RuntimeError("this world breaks")
        self._turns += 1
        self._heard = _digest(self._heard + repr((action.text, action.tool_calls)).encode())
        ends = self._turns == 3 or self._heard[1] % 4 == 0
        reward = float(self._heard[2] % 2) if ends else 0.0
        message = Message("user", self._heard.hex()[:2])
        return Observation((message,)), reward, ends, False, {}

    async def fork(self) -> Self:
        """Return an independent copy."""
        other = type(self)(fails=self._fails, fork=self.fork_strategy)
        other._heard, other._turns = self._heard, self._turns
        return other


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
