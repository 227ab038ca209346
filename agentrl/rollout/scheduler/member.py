"""One trajectory of a group, and the group: what the ledger knows of each."""

from dataclasses import dataclass, field
from typing import Literal

from agentrl.events.kinds import GroupRequest
from agentrl.events.state import GroupState, RolloutState
from agentrl.rollout.scheduler.topology import GroupProgress, RolloutKey
from agentrl.trajectory import Failed, Leaf

MemberPhase = Literal["queued", "live", "parked", "ended", "stopped"]
"""`stopped` was told to end because nobody needs it; its coroutine may still be closing things."""

GroupVerdict = Literal["open", "ready", "short"]
"""`open` waits for more of its trajectories; `short` ended with too few that did not fail."""


@dataclass(slots=True, eq=False)
class QueuedRollout:
    """One trajectory of a group. Owned by the ledger; others read it."""

    group: int
    sample: int
    phase: MemberPhase = "queued"
    failures: int = 0
    restarts: int = 0
    begun: int = 0
    born: int = 0
    """Version when it was started last."""
    oldest: int | None = None
    """Version of its oldest sampled token since then."""
    leaf: Leaf | None = None
    resumed: RolloutState | None = None
    """State it is resumed in, until it has begun."""
    waits: bool = False
    """It is a branch with a world and a coroutine already, and queued for its place."""

    @property
    def attempt(self) -> RolloutKey:
        """Return which try at which trajectory this is."""
        return RolloutKey(group=self.group, sample=self.sample, number=max(0, self.begun - 1))

    def build_failed_leaf(self, outcome: Failed) -> Leaf:
        """Return its end as a failure, of which nothing is on the tree."""
        return Leaf(node=None, outcome=outcome, sample=self.sample)


@dataclass(slots=True, eq=False)
class QueuedGroup:
    """One task's trajectories. Owned by the ledger; others read it."""

    state: GroupProgress
    opened: int
    """Index of the opening it came with: groups opened together start side by side."""
    requeues: int
    order: GroupRequest | None = None
    members: list[QueuedRollout] = field(default_factory=list[QueuedRollout])
    is_ready: bool = False
    resumed: GroupState | None = None
    """Its state, if it began before the run was resumed."""

    @property
    def to_come(self) -> int:
        """Number of trajectories of its target that have not been asked for: branches, mostly."""
        return max(0, self.state.target - self.state.started)

    @property
    def leaves(self) -> list[Leaf]:
        """Leaves the group trains on and the failures it carries, in sample order."""
        leaves = [member.leaf for member in self.members if member.leaf is not None]
        valid = [leaf for leaf in leaves if not isinstance(leaf.outcome, Failed)]
        failed = [leaf for leaf in leaves if isinstance(leaf.outcome, Failed)]
        return sorted([*valid, *failed[: failures_kept(self.state)]], key=lambda leaf: leaf.sample)


def restore_member(group: GroupState, rollout: RolloutState | None, sample: int) -> QueuedRollout:
    """Return a trajectory as it stood; one of which nothing is known begins, or is over."""
    if rollout is None:
        phase = "stopped" if group.status == "complete" else "queued"
        return QueuedRollout(group.id, sample, phase=phase)
    attempt = rollout.started.attempt
    member = QueuedRollout(
        group.id,
        sample,
        failures=group.failures(sample),
        restarts=group.restarts(sample),
        begun=attempt + (rollout.status == "abandoned"),
        leaf=rollout.leaf,
        resumed=rollout,
    )
    if rollout.leaf is not None:
        member.phase, member.begun = "ended", attempt + 1
        member.born, member.oldest = rollout.started.version, group.oldest_version(rollout)
    return member


def oldest_of(group: QueuedGroup, member: QueuedRollout) -> int | None:
    """Return the version of a trajectory's oldest sampled token, also of one to be resumed."""
    if member.oldest is not None:
        return member.oldest
    if group.resumed is None or member.resumed is None:
        return None
    return group.resumed.oldest_version(member.resumed)


def too_old(member: QueuedRollout) -> Failed:
    """Return the failure of a trajectory that its age bound has stopped too often."""
    return Failed(
        "stale",
        f"started at version {member.born} and too old to train after {member.restarts} restarts; "
        "raise rollout.max_start_lag or rollout.max_age, or choose rollout.when_old: mask",
    )


def judge(group: GroupProgress, *, min_valid: int) -> GroupVerdict:
    """Return the verdict on a group after one of its trajectories ended.

    It is ready as soon as it has all it trains on, or when there is nothing left to wait for. Ask
    the topology first: a trajectory that it still wants has to be counted as live. A group that
    trains on fewer than `min_valid` needs no more than those.
    """
    if group.valid < group.target and group.live:
        return "open"
    return "ready" if group.valid >= min(min_valid, group.target) else "short"


def failures_kept(group: GroupProgress) -> int:
    """Return the number of failed trajectories a ready group carries: the gaps in its target.

    They train nothing; reports count them.
    """
    return min(group.failed, max(0, group.target - group.valid))
