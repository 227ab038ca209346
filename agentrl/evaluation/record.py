"""The durable record of an evaluation: every trajectory of every task, and which are still missing.

It is a store as a run keeps one. A group is a task; it is complete when all its trajectories have
ended and none of them broke, so that those which broke are what a resumed evaluation plays again.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from agentrl.rollout.recorder import KeptGroup, KeptMember, RunRecorder
from agentrl.store.recorder import StoreRecorder
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.trajectory import Failed


@dataclass(slots=True, eq=False)
class _Unbroken(StoreRecorder):
    """Leaves a group open in which a trajectory broke: then it can be played again."""

    broken: set[int] = field(default_factory=set[int])
    """Numbers of such groups."""

    def completed(self, group: int) -> None:
        """Record that a group has all it needs."""
        if group not in self.broken:
            # No bare super(): a dataclass with slots is another class than the one written here.
            StoreRecorder.completed(self, group)


@dataclass(slots=True, eq=False)
class EvaluationRecord:
    """The record of one evaluation. Made by `open`; use it in `with`."""

    run: RunStore
    broken: set[int]
    """Numbers of groups with a trajectory that broke: who plays them puts them here."""
    groups: tuple[KeptGroup, ...] = ()
    """Groups that were played before."""

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings, *, seed: int, resume: bool) -> Self:
        """Make the record of an evaluation, or go on with the one in `folder`.

        Raises `ConfigError` if there is one and `resume` is off, or another process writes it.
        """
        store = StoreWriter.open(folder, settings, resume=resume)
        try:
            broken = set[int]()
            recorder = _Unbroken(store, lambda: store.next_group + 1, seed, broken=broken)
            run = RunStore(store, recorder)
            run.restore({}, step=0)
            return cls(run, broken, groups=tuple(map(_without_failures, run.groups)))
        except BaseException:
            store.close()
            raise

    @property
    def recorder(self) -> RunRecorder:
        """Recorder of what is played."""
        return self.run.recorder

    @property
    def next_group(self) -> int:
        """Return the number of the next group."""
        return self.run.next_group or 0

    @property
    def kept(self) -> dict[str, KeptGroup]:
        """Groups that were played before, by the task's fingerprint."""
        return {group.tree.task.fingerprint: group for group in self.groups}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.run.store.close()


def _without_failures(group: KeptGroup) -> KeptGroup:
    if group.complete:
        return group
    return replace(group, members=tuple(map(_again, group.members)))


def _again(member: KeptMember) -> KeptMember:
    if member.leaf is None or not isinstance(member.leaf.outcome, Failed):
        return member
    # It is begun again with all its tries: what broke it then is not what breaks it now.
    return KeptMember(
        sample=member.sample,
        seed=member.seed,
        version=member.version,
        attempt=member.attempt,
        failures=0,
    )
