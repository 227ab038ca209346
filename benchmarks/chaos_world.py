"""A world of many short turns, whatever the policy says: there is something to lose at any time."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.env import Action, BaseEnv, Info, Observation, Step, say
from agentrl.message import Message
from agentrl.task import Split, Task


class Corridor(BaseEnv):
    """Answers with a digest of all it has heard; rewards turns whose digest is even."""

    def __init__(self, *, turns: int = 6, step_s: float = 0.1) -> None:
        self._turns = turns
        self._step_s = step_s
        self._heard = hashlib.sha256()
        self._done = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield doors."""
        return [Task(prompt=f"{split} door {number}", split=split) for number in range(64)]

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Say anything: no turn is better."""
        return say(f"door {len(seen)}")

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin."""
        task = (options or {})["task"]
        self._heard, self._done = hashlib.sha256(f"{seed} {task.prompt}".encode()), 0
        return Observation((Message("user", task.prompt),), ()), {}

    async def step(self, action: Action) -> Step:
        """Answer one message."""
        await asyncio.sleep(self._step_s)
        self._done += 1
        self._heard.update(repr((action.text, action.tool_calls)).encode())
        said = self._heard.hexdigest()[:4]
        reward = float(int(said, 16) % 2 == 0) / self._turns
        return Observation((Message("user", said),)), reward, self._done == self._turns, False, {}
