"""The durable record of an evaluation: every trajectory of every task, and which are still missing.

It is a store as a run keeps one. A group is a task; it is complete when all its trajectories have
ended and none of them broke, so that those which broke are what a resumed evaluation plays again.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentrl.events.kinds import PLAYED_AGAIN, Event, GroupCompleted
from agentrl.events.log import EventLog, RolloutEmitter
from agentrl.events.state import GroupState, RolloutState
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.trajectory import Failed


@dataclass(slots=True, eq=False)
class _UnbrokenGroups:
    """Keeps in a store all but that a group is complete in which a trajectory broke."""

    store: StoreWriter
    events: EventLog

    def append(self, event: Event) -> int:
        if isinstance(event, GroupCompleted) and _broken(self.events.state.groups[event.group]):
            return self.store.position
        return self.store.append(event)

    async def wait_settled(self) -> None:
        await self.store.wait_settled()


@dataclass(slots=True, eq=False)
class EvaluationRecord(AbstractContextManager["EvaluationRecord"]):
    """The record of one evaluation. Made by `open`; use it in `with`."""

    run: RunStore
    groups: tuple[GroupState, ...] = ()

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings, *, seed: int, resume: bool) -> Self:
        """Make or resume a record; `ConfigError` where it is there without `resume`, or in use."""
        run = RunStore.open(folder, settings, seed=seed, position=lambda: 0, resume=resume)
        try:
            events = run.events
            events.task_position = lambda: events.state.next_group + 1
            run.restore({}, step=0)
            for group in run.groups:
                if group.status == "open":
                    for rollout in _broken(group):
                        # It begins with all its tries: what broke it then may not break it now.
                        RolloutEmitter(events, group, rollout).abandon(PLAYED_AGAIN)
            events.sink = _UnbrokenGroups(run.store, events)
            return cls(run, run.groups)
        except BaseException:
            run.store.close()
            raise

    @property
    def kept(self) -> dict[str, GroupState]:
        """Groups that were played before, by the task's fingerprint."""
        return {group.task.fingerprint: group for group in self.groups}

    def __exit__(self, *error: object) -> None:
        self.run.store.close()


def _broken(group: GroupState) -> list[RolloutState]:
    """Return the trajectories of a group that have ended as failures."""
    return [
        rollout
        for rollout in group.latest().values()
        if rollout.leaf is not None and isinstance(rollout.leaf.outcome, Failed)
    ]
