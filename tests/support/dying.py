"""A run in virtual time that is recorded, and dies in the middle of its work."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from agentrl.events.kinds import GroupsTrained
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.store.run import RunStore


class Dying(ABC):
    """One process of a run; the next one of the same folder goes on with its record."""

    record: RunStore
    version: int

    @abstractmethod
    def gate(self) -> RolloutScheduler:
        """Return a gate that has what was kept."""

    async def step(self, gate: RolloutScheduler) -> Any:
        """Train on the next batch; return its trees."""
        batch = await gate.next_batch()
        self.version += 1
        numbers = tuple(group.state.number for group in batch.groups)
        gate.events.emit(GroupsTrained(groups=numbers, step=self.version))
        await gate.load_weights(None, self.version)
        return list(batch.trees)

    async def live_for(self, seconds: float) -> None:
        """Work for so long, and die."""

        async def work() -> None:
            async with self.gate() as gate:
                while True:
                    await self.step(gate)

        with self.record:
            task = asyncio.create_task(work())
            await asyncio.wait([task], timeout=seconds)
            if not task.done():
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error
