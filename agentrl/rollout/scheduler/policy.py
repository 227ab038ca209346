"""The three modes of a run, as decisions over counts: open a group, start, close, hand over."""

import math
from dataclasses import dataclass
from typing import Literal

from agentrl.rollout.scheduler.segments import SegmentBudget

Mode = Literal["sync", "partial", "async"]
"""`sync` closes the gate when every trajectory of the step has ended, `partial` (APRIL) when enough
groups are complete, `async` (AReaL, RollArt) only while new weights are loaded."""

WhenOld = Literal["mask", "restart"]
"""Treatment of a trajectory with tokens beyond the age bound: only its fresh tokens train, or it
is begun again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPolicy:
    """Schedule of trajectories and size of a batch. Ages and lags are counted in versions."""

    mode: Mode = "sync"
    groups_per_step: int
    group_size: int
    concurrency: int = 64
    """Trajectories that hold an environment at once, parked ones among them."""
    over_provision: float = 1.0
    """In `partial`: groups in flight at the start of a step, per group the step needs."""
    max_staleness: int = 1
    """In `async`: how many versions ahead of the trainer a group may be admitted; 0 waits."""
    backlog: int = 0
    """In `async`: complete batches that must wait behind the one that is handed over."""
    max_start_lag: int | None = None
    """A trajectory begun more versions ago than this is begun again, ended or not."""
    max_age: int | None = None
    """No token older than this trains."""
    when_old: WhenOld = "mask"
    max_restarts: int = 2
    """Restarts of one trajectory for its age; after that it fails, and says so."""
    retries: int = 2
    min_valid: int = 0
    """A group with fewer trajectories that did not fail is never trained."""
    requeues: int = 1
    """Number of times the task of such a group is tried again as a new group."""
    rolling: bool = False
    """In `async`: engines take new weights in turn, and the gate stays open."""
    segment: SegmentBudget | None = None

    def __post_init__(self) -> None:
        for name, least in (("groups_per_step", 0), ("group_size", 1), ("concurrency", 1)):
            _require_at_least(name, getattr(self, name), least)
        for name in (
            "max_staleness",
            "backlog",
            "max_restarts",
            "retries",
            "min_valid",
            "requeues",
        ):
            _require_at_least(name, getattr(self, name), 0)
        for name in ("max_start_lag", "max_age"):
            if (bound := getattr(self, name)) is not None:
                _require_at_least(name, bound, 0)
        if self.over_provision < 1:
            raise ValueError(
                f"over_provision must be at least 1, got {self.over_provision}; with less, a step "
                "could never be filled"
            )
        if self.rolling and self.mode != "async":
            raise ValueError(
                f"rolling is true, but with mode={self.mode} nothing is sampled during a weight "
                "update; choose mode=async"
            )
        ahead = self.staleness if self.mode == "async" else 0
        if self.backlog > ahead:
            raise ValueError(
                f"backlog={self.backlog} exceeds the {ahead} batches that are started ahead of the "
                f"trainer with mode={self.mode}, max_staleness={self.max_staleness}, "
                f"max_start_lag={self.max_start_lag}, max_age={self.max_age} and "
                f"when_old={self.when_old}; no batch would ever be ready"
            )
        if self.min_valid > self.group_size:
            raise ValueError(
                f"min_valid={self.min_valid} is more than the size of a group: "
                f"group_size={self.group_size}"
            )

    @property
    def closes_between_steps(self) -> bool:
        """True when nothing is generated while the trainer works."""
        return self.mode != "async"

    @property
    def staleness(self) -> int:
        """In `async`: how many versions ahead of the trainer a group may be admitted.

        No more than its age bounds allow: what waits for longer would have to begin again.
        """
        bounds = [self.max_staleness]
        if self.max_start_lag is not None:
            bounds.append(self.max_start_lag)
        if self.when_old == "restart" and self.max_age is not None:
            bounds.append(self.max_age)
        return min(bounds)

    def is_too_old(self, version: int, *, born: int, oldest: int | None) -> bool:
        """Return whether a trajectory is begun again at `version`.

        `born` is the version at its start, `oldest` that of its oldest sampled token if it has one.
        """
        if self.max_start_lag is not None and version - born > self.max_start_lag:
            return True
        return (
            self.when_old == "restart"
            and self.max_age is not None
            and oldest is not None
            and version - oldest > self.max_age
        )

    def looks_again_at(self, *, born: int, oldest: int | None) -> int | None:
        """Return the first version at which `is_too_old` may turn true; None is never."""
        bounds: list[int] = []
        if self.max_start_lag is not None:
            bounds.append(born + self.max_start_lag)
        if self.when_old == "restart" and self.max_age is not None:
            bounds.append((born if oldest is None else oldest) + self.max_age)
        return min(bounds) + 1 if bounds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCounts:
    """Everything the modes look at. Groups are open, then ready, then taken; or dropped."""

    version: int
    waiting: bool
    open: int
    """Groups with a trajectory that has not ended."""
    ready: int
    """Complete groups that no batch has taken."""
    accepted: int
    """Groups that ever became ready, the batches before `version` among them."""
    queued: int
    live: int
    """Trajectories that hold a place: running or parked."""
    parked: int
    """Of those, the ones that have used up their segment."""
    dry: bool = False
    held: int = 0
    """Groups of a killed run that wait for the version they came from."""
    reached: int | None = None
    """Version that every engine has, where that is not `version`."""
    to_come: int = 0
    """Trajectories that open groups will have and that nothing has begun: branches, mostly."""


def capacity(
    *,
    version: int,
    max_staleness: int,
    batch: int,
    accepted: int,
    running: int,
) -> int:
    """Return the number of starts that a version admits now (AReaL); negative when overdrawn.

    `batch` is what one version consumes, in the unit of the counts (groups or trajectories).
    `accepted` counts everything ever accepted, consumed or not, and `running` what is in flight;
    what was rejected is in neither, so it is refilled. A run that is resumed at version i starts
    with `accepted = i * batch`.

    What it guarantees: consumed first in, first out, something started now is consumed at a
    version of at most `version + max_staleness`. It bounds the start, not the age of a token.
    """
    return (max_staleness + version + 1) * batch - (accepted + running)


def groups_to_open(state: SchedulerCounts, policy: SchedulerPolicy) -> int:
    """Return the number of groups to open now."""
    if state.dry:
        return 0
    have = state.open + state.ready
    if policy.mode == "async":
        places = policy.concurrency - state.live - state.queued - state.to_come
        demand = math.ceil(places / policy.group_size)
        allowed = capacity(
            version=state.version if state.reached is None else state.reached,
            max_staleness=policy.staleness,
            batch=policy.groups_per_step,
            accepted=state.accepted,
            running=state.open + state.held,
        )
        if state.held and state.waiting:
            # What is held may need a version that only this batch can bring.
            allowed = max(allowed, policy.groups_per_step - have)
        return max(0, min(demand, allowed))
    if not state.waiting:
        return 0
    per_step = policy.groups_per_step
    if policy.mode == "partial":
        per_step = max(per_step, math.ceil(policy.over_provision * per_step) - state.held)
    return max(0, per_step - have)


def places_free(state: SchedulerCounts, policy: SchedulerPolicy) -> int:
    """Return the number of queued trajectories that may start now."""
    return max(0, min(state.queued, policy.concurrency - state.live))


def batch_is_ready(state: SchedulerCounts, policy: SchedulerPolicy) -> bool:
    """Return whether the trainer gets its batch now; the gate closes before it does."""
    if not state.waiting:
        return False
    # Held groups are younger than any batch of now, so they stand at the end of the backlog.
    enough = policy.groups_per_step * (1 + policy.backlog) - state.held
    if state.ready >= max(policy.groups_per_step, enough):
        return True
    if state.dry and not state.open:
        # Nothing runs and nothing can begin: the step has what it has.
        return True
    # In `sync` a step has all of its groups, whatever its segments say.
    return policy.mode != "sync" and state.ready > 0 and _is_stuck(state, policy)


def next_segment_is_due(state: SchedulerCounts, policy: SchedulerPolicy) -> bool:
    """Return whether every trajectory waits for a version that only a batch could bring."""
    if not state.waiting or batch_is_ready(state, policy):
        return False
    return _is_stuck(state, policy)


def _is_stuck(state: SchedulerCounts, policy: SchedulerPolicy) -> bool:
    stuck = state.live > 0 and state.parked == state.live
    return stuck and places_free(state, policy) == 0 and groups_to_open(state, policy) == 0


def _require_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
