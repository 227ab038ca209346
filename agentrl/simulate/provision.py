"""Rollout rate for a trainer that never waits: capacity under a staleness bound.

ECHO-2 (arXiv 2602.02192) sizes rollout workers by overlapping them with training and with the
spreading of weights. Its formula is not public in full; this is a model of our own with the same
parts. Weights are published every `publish_every` steps, reach the engines `spread_s` later, and a
trajectory trains `trajectory_s` after it began.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.simulate.study import StudySetting

HEADROOM = 0.15
"""Rollouts beyond what is needed: trajectories fail, and rates vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPace:
    """Demand of a trainer, and the durations it depends on."""

    batch: int
    train_s: float
    spread_s: float = 0.0
    """From the end of a step until the engines have its weights."""
    trajectory_s: float = 0.0
    """Duration of one trajectory, from its beginning to its end."""
    publish_every: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1 or self.publish_every < 1 or not self.train_s > 0:
            raise ValueError(
                f"a pace has a batch of {self.batch}, weights every {self.publish_every} steps and "
                f"{self.train_s} s per step; all must be greater than 0"
            )
        if self.spread_s < 0 or self.trajectory_s < 0:
            raise ValueError(
                f"spread_s is {self.spread_s} and trajectory_s is {self.trajectory_s}; a time must "
                "be at least 0"
            )


def free_staleness(pace: TrainerPace) -> int:
    """Return the least staleness, in versions of the trainer, at which engines go on with the old
    weights while the new ones spread: what they sample meanwhile is young enough to train."""
    return pace.publish_every + math.ceil((pace.spread_s + pace.trajectory_s) / pace.train_s)


def find_needed_rate(pace: TrainerPace, *, max_staleness: int) -> float:
    """Return the trajectories per second that keep the trainer busy; infinite where none can.

    With less than `free_staleness` engines wait while weights spread, and have what is left of each
    step's time to fill its batch.
    """
    if max_staleness >= free_staleness(pace):
        return pace.batch / pace.train_s
    left_s = pace.train_s - pace.spread_s / pace.publish_every
    return pace.batch / left_s if left_s > 0 else math.inf


def units(needed: float, *, each: float, failed_fraction: float = 0.0) -> int | None:
    """Return the number of engines, or environments, of `each` trajectories per second that are
    needed, with `HEADROOM`; None where no number is enough."""
    useful = each * (1 - failed_fraction)
    if useful <= 0 or math.isinf(needed):
        return None
    # An exact quotient must not become one more by a rounding error.
    return max(1, math.ceil(needed * (1 + HEADROOM) / useful - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionPlan:
    """Capacity that keeps the trainer of a setting busy."""

    max_staleness: int
    needed_per_s: float
    engines: int | None
    """Number of engines of the setting's speed; None where no number is enough."""
    envs: int | None
    """At once, each of which waits for an engine with all slots taken."""


def pace_of(setting: StudySetting) -> TrainerPace:
    """Return the pace of a setting, whose trainer takes some time."""
    return TrainerPace(
        batch=setting.policy.groups_per_step * setting.policy.group_size,
        train_s=setting.train_s,
        spread_s=setting.speed.pause_s + setting.speed.load_s,
        trajectory_s=_trajectory_s(setting),
    )


def plan_capacity(setting: StudySetting) -> Iterator[ProvisionPlan]:
    """Yield the capacity for the least staleness of all, and for the least that is free."""
    trace, speed, pace = setting.trace, setting.speed, pace_of(setting)
    failed = trace.failure_rate if setting.failure_rate is None else setting.failure_rate
    for staleness in (1, free_staleness(pace)):
        needed = find_needed_rate(pace, max_staleness=staleness)
        yield ProvisionPlan(
            max_staleness=staleness,
            needed_per_s=needed,
            engines=units(
                needed, each=speed.tokens_per_s / trace.tokens_mean, failed_fraction=failed
            ),
            envs=units(needed, each=1 / _trajectory_s(setting), failed_fraction=failed),
        )


def _trajectory_s(setting: StudySetting) -> float:
    trace, speed = setting.trace, setting.speed
    return trace.env_s_mean + trace.tokens_mean * speed.token_s(speed.slots)
