"""Ledger of queued, live, parked and ended trajectories: events in, decisions out.

A group is *open* until its trajectories have ended, then *ready*, then *taken* by a batch; or it is
*dropped*. A trajectory is *queued*, then *live* (perhaps *parked* for its segment), then *ended*;
retries, restarts and refills put the same one back in the queue. No clock and no coroutine is in
here, and no event costs more than the logarithm of what is open.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, TypeVar

from agentrl.events.kinds import GroupRequest
from agentrl.events.state import GroupState
from agentrl.rollout.scheduler.member import (
    GroupVerdict,
    QueuedGroup,
    QueuedRollout,
    judge,
    oldest_of,
    restore_member,
    too_old,
)
from agentrl.rollout.scheduler.policy import (
    SchedulerCounts,
    SchedulerPolicy,
    batch_is_ready,
    groups_to_open,
    next_segment_is_due,
    places_free,
)
from agentrl.rollout.scheduler.topology import (
    GroupProgress,
    IndependentRollouts,
    RolloutKey,
    RolloutTopology,
    is_stale,
    tries_again,
)
from agentrl.trajectory import Failed, Leaf

T = TypeVar("T", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConsequences:
    """Consequences of the end of a trajectory."""

    again: bool = False
    """It is queued again: it failed and is refilled alone."""
    group: GroupVerdict = "open"
    surplus: tuple[QueuedRollout, ...] = ()
    """Trajectories to stop: the group is complete without them."""


OPEN = RolloutConsequences()
AGAIN = RolloutConsequences(again=True)


class RolloutQueue:
    """The scheduler's memory. Owned by one runner."""

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        topology: RolloutTopology | None = None,
        version: int = 0,
        first: int = 0,
    ) -> None:
        self.policy = policy
        self.dry = False
        """Set by the runner while there is no further task."""
        self._topology = topology or IndependentRollouts()
        self._version = self._reached = version
        self._waiting = False
        self._groups: dict[int, QueuedGroup] = {}
        self._ready: list[int] = []
        self._queue: list[tuple[int, int, int, int, int]] = []
        self._by_deadline: dict[int, dict[QueuedRollout, None]] = {}
        self._held: dict[int, QueuedGroup] = {}
        self._given_up: list[QueuedRollout] = []
        self._opened, self._openings = first, 0
        self._accepted = version * policy.groups_per_step
        self._queued = self._live = self._parked = self._open = self._ready_count = (
            self._to_come
        ) = 0
        self.restarted = self.requeued = self.dropped = 0
        """How many trajectories were begun again for their age, groups tried again, dropped."""

    @property
    def state(self) -> SchedulerCounts:
        """Return the counts that the modes decide on."""
        return SchedulerCounts(
            version=self._version,
            reached=self._reached,
            waiting=self._waiting,
            open=self._open,
            ready=self._ready_count,
            accepted=self._accepted,
            queued=self._queued,
            live=self._live,
            parked=self._parked,
            dry=self.dry,
            held=len(self._held),
            to_come=self._to_come,
        )

    def figures(self) -> dict[str, float]:
        """Return the counts of now, for the metrics."""
        return {
            "gate/open_groups": self._open,
            "gate/ready_groups": self._ready_count,
            "gate/live": self._live,
            "gate/queued": self._queued,
            "gate/restarted": self.restarted,
            "gate/requeued_groups": self.requeued,
            "gate/dropped_groups": self.dropped,
        }

    @property
    def groups(self) -> Iterable[QueuedGroup]:
        """Return the groups that are open or ready."""
        return self._groups.values()

    @property
    def oldest(self) -> int:
        """Return the version of the oldest token that a group has which was not taken.

        It is the one that every engine has where none has any: what is sampled from now on is no
        older. With `rolling` a request may be in flight since before that: what it has sampled is
        no older than its trajectory.
        """
        groups = [*self._groups.values(), *self._held.values()]
        members = [(group, member) for group in groups for member in group.members]
        versions = [oldest_of(group, member) for group, member in members]
        if self.policy.rolling:
            versions += [member.born for _, member in members if member.phase in ("live", "parked")]
        return min([self._reached, *(version for version in versions if version is not None)])

    def group(self, number: int) -> QueuedGroup | None:
        """Return an open, ready or held group."""
        return self._groups.get(number) or self._held.get(number)

    def order(self, member: QueuedRollout) -> GroupRequest | None:
        """Return the order that a trajectory's group was opened for, where the ledger was told."""
        return self._groups[member.group].order

    # --- decisions --------------------------------------------------------------------------------

    def groups_to_open(self) -> int:
        """Return the number of groups to open now."""
        return groups_to_open(self.state, self.policy)

    def batch_is_ready(self) -> bool:
        """Return whether the trainer gets its batch now."""
        return batch_is_ready(self.state, self.policy)

    def next_segment_is_due(self) -> bool:
        """Return whether parked trajectories go on without a new version."""
        return next_segment_is_due(self.state, self.policy)

    # --- events -----------------------------------------------------------------------------------

    def wait_for_batch(self) -> None:
        """Note that the trainer waits."""
        self._waiting = True

    def open_groups(
        self, requeues: Iterable[int], orders: Iterable[GroupRequest | None] = repeat(None)
    ) -> list[QueuedGroup]:
        """Open one group per entry, which says how often its task was requeued before."""
        self._openings += 1
        opened: list[QueuedGroup] = []
        for count, order in zip(requeues, orders, strict=False):
            target = order.trajectories if order is not None else None
            group = QueuedGroup(
                GroupProgress(number=self._opened, target=target or self.policy.group_size),
                opened=self._openings,
                requeues=count,
                order=order,
            )
            self._groups[self._opened] = group
            self._opened += 1
            self._count(group, 1)
            self._fill(group)
            opened.append(group)
        return opened

    def adopt(self, resumed: GroupState) -> None:
        """Hold a group that began before the run was resumed, until `admit`."""
        is_complete = resumed.status == "complete"
        rollouts = {
            sample: rollout
            for sample, rollout in resumed.latest().items()
            if rollout.leaf is not None or not is_complete
        }
        members = [
            restore_member(resumed, rollouts.get(sample), sample)
            for sample in range(max(rollouts, default=-1) + 1)
        ]
        ends = [member.leaf for member in members if member.leaf is not None]
        failed = sum(isinstance(leaf.outcome, Failed) for leaf in ends)
        state = GroupProgress(
            number=resumed.id,
            target=resumed.size,
            started=len(members),
            live=sum(member.phase == "queued" for member in members),
            valid=len(ends) - failed,
            failed=failed,
        )
        request = resumed.request
        self._held[resumed.id] = QueuedGroup(
            state, opened=0, requeues=request.tries, order=request, members=members,
            resumed=resumed,
        )  # fmt: skip
        self._opened = max(self._opened, resumed.id + 1)

    def admit(self) -> list[tuple[QueuedGroup, RolloutConsequences]]:
        """Let the held groups go on whose version has come, and say what follows for each.

        What has become too old meanwhile begins again or is given up, as if `publish` had told.
        """
        due = [n for n, g in sorted(self._held.items()) if g.resumed and self._is_due(g.resumed)]
        admitted: list[tuple[QueuedGroup, RolloutConsequences]] = []
        for number in due:
            group = self._groups[number] = self._held.pop(number)
            self._count(group, 1)
            for member in group.members:
                if member.phase == "queued":
                    self._enqueue(group, member)
                elif member.phase == "ended":
                    self._look_again(member)
            if group.resumed and group.resumed.status == "open":
                self._end_old(group)
                self._fill(group)
            admitted.append((group, self._settle(group)))
        return admitted

    def take_given_up(self) -> list[QueuedRollout]:
        """Return the trajectories without a coroutine that age has ended since the last call.

        Those with a leaf have failed as stale; the others are queued to begin again.
        """
        members, self._given_up = self._given_up, []
        return members

    def start_next(self) -> QueuedRollout | None:
        """Give the next queued trajectory a place, if one is free."""
        while self._queue and places_free(self.state, self.policy):
            _, _, _, number, sample = heappop(self._queue)
            group = self._groups.get(number)
            member = group.members[sample] if group is not None else None
            if member is None or member.phase != "queued":
                continue
            self._queued -= 1
            self._begin(member)
            return member
        return None

    def upcoming(self, most: int) -> list[int]:
        """Return the groups of the trajectories that get the next places, the first one first."""
        rollouts: dict[QueuedRollout, None] = {}
        for _, _, _, number, sample in iterate_heap(self._queue):
            if (group := self._groups.get(number)) is not None:
                member = group.members[sample]
                if member.phase == "queued" and not member.waits:
                    rollouts[member] = None
            if len(rollouts) == most:
                break
        return [member.group for member in rollouts]

    def fork(self, parent: QueuedRollout) -> QueuedRollout:
        """Add a trajectory to a group, a branch of `parent` with the parent's age, and queue it.

        It comes before all that has not begun: its environment exists already.
        """
        group = self._groups[parent.group]
        member = self._add(group, first=True)
        member.waits, member.begun = True, 1
        member.born, member.oldest = parent.born, parent.oldest
        self._look_again(member)
        return member

    def note_version(self, member: QueuedRollout, oldest: int) -> None:
        """Note a version that has sampled tokens of a trajectory, or those it has begun with."""
        if member.oldest is None or oldest < member.oldest:
            member.oldest = oldest
            self._look_again(member)

    def begin_again(self, member: QueuedRollout) -> int:
        """Note that a live trajectory has lost all that was kept of it; return its new version."""
        member.born, member.oldest = self._reached, None
        self._look_again(member)
        return member.born

    def park(self, member: QueuedRollout) -> None:
        """Note that a trajectory has used up its segment."""
        if member.phase == "live":
            member.phase = "parked"
            self._parked += 1

    def unpark(self, member: QueuedRollout) -> None:
        """Note that a trajectory goes on with its next segment."""
        if member.phase == "parked":
            member.phase = "live"
            self._parked -= 1

    def end_rollout(self, member: QueuedRollout, leaf: Leaf) -> RolloutConsequences:
        """Take the end of a trajectory that is live or waits, and say what follows."""
        if member.phase == "stopped":
            return OPEN
        group = self._groups[member.group]
        failed = isinstance(leaf.outcome, Failed)
        attempt = RolloutKey(group=member.group, sample=member.sample, number=member.failures)
        self._leave(member)
        if tries_again(leaf.outcome, attempt, retries=self.policy.retries):
            member.failures += 1
            self._enqueue(group, member, first=True)
            return AGAIN
        member.phase, member.leaf = "ended", leaf
        group.state = replace(
            group.state,
            live=group.state.live - 1,
            valid=group.state.valid + (not failed),
            failed=group.state.failed + failed,
        )
        self._topology.end_rollout(member.attempt, leaf)
        self._fill(group)
        return self._settle(group)

    def grow(self, group: QueuedGroup, more: int) -> bool:
        """Let a complete group train on so many trajectories more; False when none begins."""
        if more <= 0:
            return False
        self._count(group, -1)
        group.state = replace(group.state, target=group.state.target + more)
        self._count(group, 1)
        self._fill(group)
        return group.state.live > 0

    def accept(self, group: QueuedGroup) -> None:
        """Note that a group whose verdict was `ready` may train."""
        group.is_ready = True
        self._count(group, -1)
        self._ready_count += 1
        self._accepted += 1
        heappush(self._ready, group.state.number)

    def drop(self, group: QueuedGroup, *, requeue: bool = False) -> bool:
        """Forget a group that will not train; return whether its task is to be tried again."""
        del self._groups[group.state.number]
        self._topology.close_group(group.state.number)
        self._count(group, -1)
        again = requeue and group.requeues < self.policy.requeues
        self.requeued += again
        self.dropped += not again
        return again

    def take(self) -> list[QueuedGroup]:
        """Hand the oldest ready groups to the trainer, which no longer waits."""
        groups: list[QueuedGroup] = []
        while self._ready and len(groups) < self.policy.groups_per_step:
            group = self._groups.get(heappop(self._ready))
            if group is None or not group.is_ready:
                continue
            del self._groups[group.state.number]
            self._topology.close_group(group.state.number)
            groups.append(group)
        self._ready_count -= len(groups)
        # A short batch uses up its version all the same.
        self._accepted += self.policy.groups_per_step - len(groups)
        self._waiting = False
        return groups

    def publish(self, version: int, *, rolls: bool = False) -> list[QueuedRollout]:
        """Take a new version; return the trajectories that must end now because they are too old.

        With `rolls` the engines have it later: `reach` says when.

        Those that have ended are queued again by this call; live ones when `restart` is called,
        after their coroutines have ended.
        """
        self._version = version
        if not rolls:
            self._reached = version
        stop: list[QueuedRollout] = []
        for due in sorted(key for key in self._by_deadline if key <= version):
            for member in self._by_deadline.pop(due):
                if self._is_gone(member):
                    continue
                if not self.policy.is_too_old(version, born=member.born, oldest=member.oldest):
                    self._look_again(member)
                elif member.phase == "ended":
                    self._reopen(member)
                else:
                    stop.append(member)
        return stop

    def reach(self, version: int) -> None:
        """Note that every engine has a version."""
        self._reached = version

    def restart(self, member: QueuedRollout) -> bool:
        """Queue a live trajectory again because of its age; False when it has had its chances."""
        if member.restarts >= self.policy.max_restarts:
            return False
        self._leave(member)
        member.restarts += 1
        self.restarted += 1
        self._enqueue(self._groups[member.group], member, first=True)
        return True

    # --- how --------------------------------------------------------------------------------------

    def _fill(self, group: QueuedGroup) -> None:
        for _ in range(self._topology.count_missing(group.state)):
            self._add(group)

    def _count(self, group: QueuedGroup, sign: int) -> None:
        """Count a group among the open ones, or no longer; around every change of its size."""
        self._open += sign
        self._to_come += sign * group.to_come

    def _add(self, group: QueuedGroup, *, first: bool = False) -> QueuedRollout:
        member = QueuedRollout(group.state.number, len(group.members))
        group.members.append(member)
        self._count(group, -1)
        group.state = replace(
            group.state, started=group.state.started + 1, live=group.state.live + 1
        )
        self._count(group, 1)
        self._enqueue(group, member, first=first)
        return member

    def _enqueue(self, group: QueuedGroup, member: QueuedRollout, *, first: bool = False) -> None:
        member.phase, member.oldest = "queued", None
        self._queued += 1
        number, sample = group.state.number, member.sample
        # Groups opened together start their first samples first: the later ones reuse the prompt.
        # Without a barrier at the end of the step, whole groups first: they complete earlier.
        side_by_side = sample if self.policy.mode == "sync" else 0
        heappush(self._queue, (not first, group.opened, side_by_side, number, sample))

    def _begin(self, member: QueuedRollout) -> None:
        member.phase = "live"
        if not member.waits:
            member.born, member.oldest = self._reached, None
            member.begun += 1
        member.waits = False
        self._live += 1
        self._recall_age(self._groups[member.group], member)
        self._look_again(member)

    def _recall_age(self, group: QueuedGroup, member: QueuedRollout) -> None:
        """Give a trajectory that goes on after a resume the age that it had."""
        resumed = member.resumed
        if group.resumed is not None and resumed is not None and resumed.goes_on:
            member.born = min(resumed.started.version, self._reached)
            member.oldest = group.resumed.oldest_version(resumed)

    def _end_old(self, group: QueuedGroup) -> None:
        """Begin again, or give up, what is too old of an open group that is resumed."""
        for member in [m for m in group.members if self._has_aged(group, m)]:
            if member.phase == "ended":
                self._reopen(member)
            elif member.phase == "queued":
                self._given_up.append(member)
                if self.restart(member):
                    member.resumed = None
                    member.begun += 1
                else:
                    self.end_rollout(member, member.build_failed_leaf(too_old(member)))

    def _has_aged(self, group: QueuedGroup, member: QueuedRollout) -> bool:
        self._recall_age(group, member)
        goes_on = member.resumed is not None and member.resumed.goes_on
        is_valid = member.leaf is not None and not isinstance(member.leaf.outcome, Failed)
        return (goes_on or is_valid) and self.policy.is_too_old(
            self._version, born=member.born, oldest=member.oldest
        )

    def _is_due(self, resumed: GroupState) -> bool:
        return resumed.waits_for <= self._version

    def _look_again(self, member: QueuedRollout) -> None:
        due = self.policy.looks_again_at(born=member.born, oldest=member.oldest)
        if due is not None:
            self._by_deadline.setdefault(max(due, self._version + 1), {})[member] = None

    def _leave(self, member: QueuedRollout) -> None:
        self.unpark(member)
        member.waits = False
        if member.phase == "queued":
            self._queued -= 1
        else:
            self._live -= 1

    def _is_gone(self, member: QueuedRollout) -> bool:
        """Return whether a trajectory's age has no effect: taken, dropped, failed or not begun."""
        if member.group not in self._groups or member.phase == "stopped":
            return True
        resumed = self._groups[member.group].resumed
        if resumed is not None and resumed.status == "complete":
            return True  # It was handed over before: its record is closed.
        if member.phase == "queued":
            return not member.waits
        return member.leaf is not None and isinstance(member.leaf.outcome, Failed)

    def _settle(self, group: QueuedGroup) -> RolloutConsequences:
        verdict = judge(group.state, min_valid=self._find_min_valid(group))
        if verdict == "open":
            return OPEN
        surplus = [m for m in group.members if m.phase not in ("ended", "stopped")]
        stopped = [member for member in surplus if self._stop(group, member)]
        return RolloutConsequences(group=verdict, surplus=tuple(stopped))

    def _find_min_valid(self, group: QueuedGroup) -> int:
        """Return the least number of trajectories without failure that a group trains on.

        Age takes none of them: a group that it has emptied is tried again.
        """
        stale = any(m.leaf is not None and is_stale(m.leaf.outcome) for m in group.members)
        return max(self.policy.min_valid, 1) if stale else self.policy.min_valid

    def _stop(self, group: QueuedGroup, member: QueuedRollout) -> bool:
        """Give up a trajectory nobody needs; return whether it has a coroutine to end."""
        has_coroutine = member.waits or member.phase != "queued"
        self._leave(member)
        member.phase = "stopped"
        group.state = replace(group.state, live=group.state.live - 1)
        return has_coroutine

    def _reopen(self, member: QueuedRollout) -> None:
        group = self._groups[member.group]
        if member.restarts >= self.policy.max_restarts:
            self._expire(group, member)
            return
        if group.is_ready:
            self._withdraw(group)
        member.leaf = None
        member.restarts += 1
        self.restarted += 1
        group.state = replace(group.state, live=group.state.live + 1, valid=group.state.valid - 1)
        self._enqueue(group, member, first=True)

    def _expire(self, group: QueuedGroup, member: QueuedRollout) -> None:
        assert member.leaf is not None
        member.leaf = replace(member.leaf, outcome=too_old(member))
        self._given_up.append(member)
        group.state = replace(
            group.state, valid=group.state.valid - 1, failed=group.state.failed + 1
        )
        if group.is_ready and group.state.valid < min(
            self._find_min_valid(group), group.state.target
        ):
            self._withdraw(group)
            self.drop(group)

    def _withdraw(self, group: QueuedGroup) -> None:
        group.is_ready = False
        self._count(group, 1)
        self._ready_count -= 1
        self._accepted -= 1


def iterate_heap(heap: Sequence[T]) -> Iterator[T]:
    """Yield the entries of a heap of `heapq`, the least first; the first k cost k log k."""
    front = [(heap[0], 0)] if heap else []
    while front:
        entry, at = heappop(front)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(front, (heap[child], child))
