"""Trajectories' coroutines, and what the watchdog does about those that take too long."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from agentrl.errors import EngineError, EnvError, RolloutError
from agentrl.rollout.scheduler.deadlines import SchedulerDeadlines, SchedulerStalled
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.rollout.scheduler.watchdog import SlotActivity, name_all, overdue
from agentrl.trajectory import Failed, Leaf


@dataclass(slots=True, eq=False)
class RunningRollout:
    """A trajectory's coroutine, and why it was told to end, if it was."""

    slot: RolloutSlot
    task: "asyncio.Task[Leaf]"
    place: asyncio.Event
    """Set when it has its place; nothing of it runs before."""
    ends_as: Failed | None = None
    restarts: bool = False
    told_s: float = 0.0

    @classmethod
    def begin(
        cls, slot: RolloutSlot, play: Callable[[RolloutSlot], Awaitable[Leaf]]
    ) -> "RunningRollout":
        """Begin the coroutine that plays a slot as soon as it has its place."""
        place = asyncio.Event()

        async def run() -> Leaf:
            if not place.is_set():
                await slot.wait(place.wait)
            return await play(slot)

        return cls(slot, asyncio.create_task(run()), place)

    @property
    def activity(self) -> SlotActivity:
        """Current activity."""
        slot = self.slot
        return SlotActivity(
            task=slot.tree.task.id,
            group=slot.attempt.group,
            sample=slot.attempt.sample,
            phase=slot.phase,
            since_s=slot.since_s,
        )

    def cancel(self, now_s: float) -> None:
        """Tell it to end."""
        self.told_s = now_s
        self.task.cancel()


def end_overdue(
    running: Collection[RunningRollout],
    *,
    now_s: float,
    deadlines: SchedulerDeadlines,
    on_stuck: Callable[[str], None],
) -> int:
    """End what is overdue, as a failure that says where; return how many are new.

    Raises `SchedulerStalled` for one that was told to end long ago.
    """
    by_name = {(run.slot.attempt.group, run.slot.attempt.sample): run for run in running}
    late = overdue(
        [run.activity for run in running],
        now_s=now_s,
        deadlines_s=deadlines.phases,
        grace_s=deadlines.grace_s,
    )
    stuck = 0
    for activity in late:
        text = activity.describe(now_s)
        run = by_name[activity.group, activity.sample]
        if run.ends_as is None:
            stuck += 1
            on_stuck(text)
            kind: type[RolloutError] = EngineError if activity.phase == "generate" else EnvError
            run.ends_as = Failed(kind.kind, f"stuck: {text}")
            run.cancel(now_s)
        elif now_s - run.told_s > deadlines.grace_s:
            raise SchedulerStalled(
                f"{text}, and it does not end after it was cancelled; its environment suppresses "
                "cancellation: let asyncio.CancelledError propagate there"
            )
    return stuck


def check_moving(
    running: Collection[RunningRollout],
    *,
    now_s: float,
    moved_s: float,
    deadlines: SchedulerDeadlines,
) -> None:
    """Raise `SchedulerStalled` when nothing has moved for too long, and name what is waited for."""
    if now_s - moved_s > deadlines.stall_s:
        raise SchedulerStalled(
            f"no progress for {now_s - moved_s:.0f} s, but rollout.stall_s allows "
            f"{deadlines.stall_s:.0f} s; waiting for: "
            + name_all([run.activity for run in running], now_s=now_s)
        )
