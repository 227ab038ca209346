"""The gate's side of a durable record. Without one, everything here does nothing."""

from dataclasses import dataclass

from agentrl.rollout.recorder import BranchDeparture, KeptMember, RunRecorder
from agentrl.rollout.scheduler.member import QueuedGroup
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.rollout.scheduler.topology import GroupRequest
from agentrl.trajectory import Failed, Leaf


@dataclass(frozen=True, slots=True)
class SchedulerRecorder:
    """Tells a recorder what the gate does."""

    recorder: RunRecorder | None

    def opened(self, group: QueuedGroup, order: GroupRequest, *, after: int, version: int) -> None:
        """Keep a group; `after` more are opened of the tasks that were taken with its task."""
        if self.recorder is not None:
            state = group.state
            self.recorder.opened(
                state.number, order, size=state.target, after=after, version=version
            )

    def enlarged(self, group: QueuedGroup) -> None:
        """Keep that a group trains on more than it was opened for."""
        if self.recorder is not None:
            self.recorder.enlarged(group.state.number, group.state.target)

    def started(
        self,
        seat: RolloutSlot,
        kept: KeptMember | None,
        leaving: BranchDeparture | None,
        *,
        version: int,
    ) -> None:
        """Let a seat go on where its trajectory was kept, and give it its record.

        `version` is what the trajectory began at, as its age is counted.
        """
        stand = None if kept is None else kept.stand
        if stand is not None:
            seat.stands(stand)
        if self.recorder is None:
            return
        if leaving is not None:
            seat.record = self.recorder.forked(
                seat.attempt, seat.tree, seed=seat.seed, version=version, leaving=leaving
            )
        else:
            seat.record = self.recorder.begun(
                seat.attempt, seat.tree, seed=seat.seed, version=version, stand=stand
            )

    def finished(self, seat: RolloutSlot, leaf: Leaf) -> None:
        """Keep a trajectory's end for good."""
        if seat.record is not None:
            seat.record.finished(leaf)

    def failed(self, seat: RolloutSlot, leaf: Leaf) -> None:
        """Keep that a trajectory failed and begins again."""
        if seat.record is not None and isinstance(failed := leaf.outcome, Failed):
            why = f"failed: {failed.kind}: {failed.error}"
            seat.record.given_up(why, failure=failed.kind)

    def given_up(self, seat: RolloutSlot, why: str) -> None:
        """Keep that a trajectory does not count."""
        if seat.record is not None:
            seat.record.given_up(why)

    def dropped(
        self, number: int, why: str, *, requeued: bool = False, counts: bool = False
    ) -> None:
        """Keep that a group will not train; see `RunRecorder.dropped`."""
        if self.recorder is not None:
            self.recorder.dropped(number, why, requeued=requeued, counts=counts)

    def completed(self, number: int) -> None:
        """Keep that a group is handed to the trainer."""
        if self.recorder is not None:
            self.recorder.completed(number)
