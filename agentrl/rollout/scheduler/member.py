"""One trajectory of a group, and the group: what the ledger knows of each."""

from dataclasses import dataclass, field
from typing import Literal

from agentrl.rollout.recorder import KeptGroup, KeptMember
from agentrl.rollout.scheduler.group_verdict import failures_kept
from agentrl.rollout.scheduler.topology import GroupRequest, GroupState, RolloutKey
from agentrl.trajectory import Failed, Leaf

MemberPhase = Literal["queued", "live", "parked", "ended", "stopped"]
"""`stopped` was told to end because nobody needs it; its coroutine may still be closing things."""


@dataclass(slots=True, eq=False)
class QueuedRollout:
    """One trajectory of a group. Owned by the ledger; others read it."""

    group: int
    sample: int
    phase: MemberPhase = "queued"
    failures: int = 0
    restarts: int = 0
    begun: int = 0
    """Number of times it was started."""
    born: int = 0
    """Version when it was started last."""
    oldest: int | None = None
    """Version of its oldest sampled token since then."""
    leaf: Leaf | None = None
    """Its end, once it has ended for good."""
    kept: KeptMember | None = None
    """Recorded state of it, until it has begun."""
    waits: bool = False
    """It is a branch with a world and a coroutine already, and queued for its place."""

    @property
    def attempt(self) -> RolloutKey:
        """Return which try at which trajectory this is."""
        return RolloutKey(group=self.group, sample=self.sample, number=max(0, self.begun - 1))

    def failed(self, outcome: Failed) -> Leaf:
        """Return its end as a failure, of which nothing is on the tree."""
        return Leaf(node=None, outcome=outcome, sample=self.sample)


@dataclass(slots=True, eq=False)
class QueuedGroup:
    """One task's trajectories. Owned by the ledger; others read it."""

    state: GroupState
    opened: int
    """Index of the opening it came with: groups opened together start side by side."""
    requeues: int
    order: GroupRequest | None = None
    """Order it was opened for, where the ledger was told."""
    members: list[QueuedRollout] = field(default_factory=list[QueuedRollout])
    is_ready: bool = False
    kept: KeptGroup | None = None
    """Recorded state of it."""

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


def member_of(group: KeptGroup, kept: KeptMember | None, sample: int) -> QueuedRollout:
    """Return a kept trajectory as it stood; one of which nothing is kept begins, or is over."""
    if kept is None:
        return QueuedRollout(group.number, sample, phase="stopped" if group.complete else "queued")
    member = QueuedRollout(
        group.number,
        sample,
        failures=kept.failures,
        restarts=kept.restarts,
        begun=kept.attempt,
        leaf=kept.leaf,
        kept=kept,
    )
    if kept.leaf is not None:
        member.phase, member.begun = "ended", kept.attempt + 1
        member.born, member.oldest = kept.version, group.oldest(kept)
    return member


def oldest_of(group: QueuedGroup, member: QueuedRollout) -> int | None:
    """Return the version of a trajectory's oldest sampled token, also one that a record kept."""
    if member.oldest is not None:
        return member.oldest
    return None if group.kept is None or member.kept is None else group.kept.oldest(member.kept)


def too_old(member: QueuedRollout) -> Failed:
    """Return the failure of a trajectory that its age bound has stopped too often."""
    return Failed(
        "stale",
        f"started at version {member.born} and too old to train after {member.restarts} restarts; "
        "raise rollout.max_start_lag or rollout.max_age, or choose rollout.when_old: mask",
    )
