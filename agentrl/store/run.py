"""The store in a run: opened with it, restored to its checkpoint, and counted in its metrics."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl.events.kinds import (
    MISMATCH,
    RERUN,
    CheckpointStarted,
    Event,
    GroupDropped,
    RolloutAbandoned,
)
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState, RunState
from agentrl.store.errors import StoreError
from agentrl.store.opening import Damaged
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter


@dataclass(slots=True, eq=False)
class RunStore:
    """The durable record of one run. Made by `open`; use it in `with`."""

    store: StoreWriter
    events: EventLog
    turns: int = 0
    """Complete turns in trajectories that go on."""
    reruns: int = 0
    """Number of restored trajectories that were begun again."""
    before: Mapping[str, int] = field(default_factory=dict[str, int])
    _mismatches: int = 0
    _is_restored: bool = False

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings,
        *,
        seed: int,
        position: Callable[[], int],
        resume: bool,
        damaged: Damaged = "refuse",
    ) -> Self:
        """Make the store of a new run, or open that of one that goes on; see `StoreWriter.open`.

        `position` says how many tasks have been handed out, `seed` is the run's.
        """
        store = StoreWriter.open(folder, settings, resume=resume, damaged=damaged)
        run = cls(store, EventLog(store, seed=seed, task_position=position))
        run.events.subscribe(run)
        return run

    def restore(self, samplers: Mapping[str, Any], *, step: int) -> int | None:
        """Go on from a checkpoint of `step` with these samplers, `{}` and 0 without one.

        Return how many tasks have been handed out, or None where nothing is recorded.
        """
        position = int(samplers.get("store", {}).get("position", 0))
        if not self.store.position and not position:
            return None
        self.events.state = self.store.restore(position=position, step=step)
        self._is_restored = True
        self.turns = sum(_open_turns(group) for group in self.groups if group.status == "open")
        return self.events.state.task_position

    @property
    def groups(self) -> tuple[GroupState, ...]:
        """Groups for the scheduler to go on with, in the order they were opened."""
        return tuple(self.events.state.groups.values())

    @property
    def next_group(self) -> int | None:
        """Number of the first group to open; None where nothing is restored."""
        return self.events.state.next_group if self._is_restored else None

    def begin_again(self, group: GroupState) -> None:
        """Give up what was kept of a group that is not complete, and open one with its task.

        For a group whose trajectories came of decisions that cannot be made out.
        """
        self.reruns += len(group.open_rollouts)
        self.turns -= _open_turns(group)
        self.events.emit(GroupDropped(group=group.id, reason=RERUN))
        opened = replace(group.opened, group=self.events.state.next_group)
        self.events.emit(opened)

    def on_event(self, event: Event, state: RunState) -> None:
        if isinstance(event, RolloutAbandoned) and event.reason in (RERUN, MISMATCH):
            self.reruns += 1
            self._mismatches += event.reason == MISMATCH

    def checkpoint(self, step: int) -> dict[str, Any]:
        """Bring everything to the disk; return what the checkpoint has to hold.

        Blocks until the disk has answered. What is recorded as trained so far belongs to the
        checkpoint that is written next; until that is whole, a resumed run does not count it.
        """
        self.events.emit(CheckpointStarted(step=step))
        self.store.sync()
        return {"position": self.store.position}

    def prune(self, samplers: Mapping[str, Any] | None) -> None:
        """Let go of what no checkpoint needs from the one with these samplers on."""
        if samplers is not None and "store" in samplers:
            self.store.prune(position=int(samplers["store"]["position"]))

    def figures(self) -> dict[str, float]:
        """Return the metrics of the store and of the restoration."""
        return {
            "store/records": self.store.position,
            "store/restored_turns": self.turns,
            "store/rerun_trajectories": self.reruns,
            "store/replay_mismatches": self._mismatches,
            "store/torn_bytes": self._torn_bytes,
        }

    @property
    def summary(self) -> dict[str, int]:
        """Return the same over all the times the run was started."""
        now = {
            "restored_turns": self.turns,
            "rerun_trajectories": self.reruns,
            "torn_bytes": self._torn_bytes,
        }
        return {name: self.before.get(name, 0) + value for name, value in now.items()}

    @property
    def _torn_bytes(self) -> int:
        return self.store.torn_bytes if self._is_restored else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The first error says what was wrong; a stop is none.
        is_told = kind is not None and issubclass(kind, Exception)
        with suppress(StoreError) if is_told else nullcontext():
            self.store.close()


def _open_turns(group: GroupState) -> int:
    return sum(rollout.turns for rollout in group.open_rollouts)
