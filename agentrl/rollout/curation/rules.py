"""Curation methods of a run, chosen by name, and the combinations that conflict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.curation.allocation import (
    DarsAllocator,
    DartAllocator,
    FixedAllocator,
    RolloutAllocation,
)
from agentrl.rollout.curation.cdas import CdasTaskSampler
from agentrl.rollout.curation.dapo import DynamicSamplingFilter
from agentrl.rollout.curation.duet import DuetAllocator
from agentrl.rollout.curation.members import BalancedRollouts
from agentrl.rollout.curation.rounds import RoundAllocator
from agentrl.rollout.curation.sampling import CurriculumSampler, UniformTaskSampler
from agentrl.rollout.curation.steps import HighEntropySteps
from agentrl.rollout.curation.success_pool import SuccessPool
from agentrl.rollout.curation.vade import VadeTaskSampler
from agentrl.rollout.curation.xrpo import XrpoAllocator


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationRules:
    """Everything that decides which trajectories are made and which of them train."""

    sampler: CurriculumSampler | None = None
    """None is `stream`: the environment's own order, then shuffled epochs."""
    allocation: RolloutAllocation = field(default_factory=FixedAllocator)
    filter: DynamicSamplingFilter | None = None
    pool: SuccessPool | None = None
    members: BalancedRollouts | None = None
    """Selection of a group's trajectories that train; None is all."""
    steps: HighEntropySteps | None = None
    success_above: float = 0.0
    """A reward above this is a success, for length caps and the pool."""
    revisit_every: int | None = None
    """Steps after which a task that was not drawn comes first; null lets the sampler decide."""

    @property
    def does_nothing(self) -> bool:
        """Return whether a run is the same without it."""
        return self == CurationRules()


SLOTS: Mapping[str, Mapping[str, Callable[..., Any] | None]] = {
    "sampler": {
        "stream": None,
        "uniform": UniformTaskSampler,
        "cdas": CdasTaskSampler,
        "vade": VadeTaskSampler,
    },
    "allocation": {
        "fixed": FixedAllocator,
        "dart": DartAllocator,
        "dars": DarsAllocator,
        "xrpo": XrpoAllocator,
        "duet": DuetAllocator,
    },
    "filter": {"none": None, "dapo": DynamicSamplingFilter},
    "pool": {"none": None, "success": SuccessPool},
    "members": {"all": None, "balanced": BalancedRollouts},
    "steps": {"all": None, "high_entropy": HighEntropySteps},
}
"""Every method by slot and name."""


def build_curation_rules(keys: Mapping[str, Any]) -> CurationRules:
    """Return the rules of a config section: a mapping with a `name` and knobs for each slot.

    Raises `ConfigError` for an unknown slot, name or knob.
    """
    names = [field.name for field in fields(CurationRules)]
    if wrong := sorted(keys.keys() - {*names}):
        raise ConfigError(f"curation.{wrong[0]} is not a key; the keys are {', '.join(names)}")
    return CurationRules(
        **{key: _bound(key, keys[key]) if key in SLOTS else keys[key] for key in keys}
    )


def _bound(slot: str, keys: Mapping[str, Any]) -> Any:
    knobs = dict(keys)
    name = knobs.pop("name", None)
    if name not in SLOTS[slot]:
        raise ConfigError(
            f"curation.{slot}.name is {name!r}; choose one of {', '.join(map(repr, SLOTS[slot]))}"
        )
    method = SLOTS[slot][name]
    if method is None:
        if knobs:
            raise ConfigError(f"curation.{slot} ({name}) has no keys; remove {sorted(knobs)}")
        return None
    try:
        return method(**knobs)
    except TypeError as error:
        raise ConfigError(f"curation.{slot} ({name}): {error}; remove that key") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationContext:
    """Parts of the rest of the run's config that curation depends on."""

    group_size: int
    tasks_per_step: int
    tasks: int | None
    """Different train tasks; None when it is not known that the stream ends."""
    entropies: bool = False
    """True when the engine reports the entropy of what it samples."""
    max_age: int | None = None
    """Oldest version difference at which a token still trains; None without a bound."""


@dataclass(frozen=True, slots=True)
class CurationConflict:
    """A combination that makes no sense, and what to say about it."""

    holds: Callable[[CurationRules, CurationContext], bool]
    text: str


def _caps_turns(rules: CurationRules) -> bool:
    return isinstance(rules.allocation, DartAllocator) and rules.allocation.length_slack is not None


CONFLICTS: tuple[CurationConflict, ...] = (
    CurationConflict(
        lambda r, a: r.sampler is not None and a.tasks is None,
        "curation.sampler.name needs a known set of tasks, but the stream of tasks may be endless; "
        "set env.task_limit, or curation.sampler.name: stream",
    ),
    CurationConflict(
        lambda r, a: r.sampler is not None and a.tasks is not None and a.tasks < a.tasks_per_step,
        "curation.sampler.name draws no task twice in a step, but rollout.tasks_per_step exceeds "
        "the number of tasks; lower rollout.tasks_per_step, raise env.task_limit, or set "
        "curation.sampler.name: stream",
    ),
    CurationConflict(
        lambda r, a: r.sampler is None and r.revisit_every is not None,
        "curation.revisit_every applies to samplers that may skip tasks, but "
        "curation.sampler.name: stream skips none; remove one of the two",
    ),
    CurationConflict(
        lambda r, a: isinstance(r.allocation, DartAllocator) and a.tasks is None,
        "curation.allocation.name: dart learns from earlier trajectories of the same task, but in "
        "an endless stream no task recurs; set env.task_limit if the stream is finite, or "
        "curation.allocation.name: fixed",
    ),
    CurationConflict(
        lambda r, a: r.pool is not None and a.tasks is None,
        "curation.pool.name: success reuses earlier trajectories of the same task, but in an "
        "endless stream no task recurs; set env.task_limit if the stream is finite, or "
        "curation.pool.name: none",
    ),
    CurationConflict(
        lambda r, a: r.filter is not None and a.group_size < 2,
        "curation.filter.name: dapo keeps groups whose rewards differ, but with "
        "rollout.group_size: 1 there is nothing to compare; raise rollout.group_size, or set "
        "curation.filter.name: none",
    ),
    CurationConflict(
        lambda r, a: r.filter is not None and 2 <= a.group_size < r.filter.min_valid,
        "curation.filter.min_valid is above rollout.group_size, so no group is ever kept; lower "
        "curation.filter.min_valid or raise rollout.group_size",
    ),
    CurationConflict(
        lambda r, a: r.pool is not None and a.group_size < 2,
        "curation.pool.name: success adds one trajectory to the others of a group, but with "
        "rollout.group_size: 1 there are no others; raise rollout.group_size, or set "
        "curation.pool.name: none",
    ),
    CurationConflict(
        lambda r, a: (
            r.pool is not None
            and a.max_age is not None
            and (r.pool.max_age is None or r.pool.max_age > a.max_age)
        ),
        "curation.pool.max_age allows tokens that rollout.max_age excludes from training; set "
        "curation.pool.max_age to at most rollout.max_age",
    ),
    CurationConflict(
        lambda r, a: (
            r.members is not None
            and r.filter is not None
            and r.members.most < r.filter.min_valid <= a.group_size
        ),
        "curation.members.most is below curation.filter.min_valid, so no group is ever kept; raise "
        "curation.members.most, or lower curation.filter.min_valid",
    ),
    CurationConflict(
        lambda r, a: (
            r.success_above != 0 and r.pool is None and r.members is None and not _caps_turns(r)
        ),
        "curation.success_above defines a success for the pool, for curation.members and for "
        "DART's turn limits, but none of them is set; remove it, or set curation.pool.name: "
        "success or curation.allocation.name: dart",
    ),
    CurationConflict(
        lambda r, a: (
            isinstance(r.allocation, DartAllocator) and r.allocation.minimum > a.group_size
        ),
        "curation.allocation.minimum is above rollout.group_size, the maximum number of "
        "trajectories per task; lower curation.allocation.minimum",
    ),
    CurationConflict(
        lambda r, a: (
            isinstance(r.allocation, DartAllocator)
            and r.filter is not None
            and max(r.allocation.minimum, 2) < r.filter.min_valid <= a.group_size
        ),
        "curation.filter.min_valid is above the number of trajectories that "
        "curation.allocation.name: dart gives a nearly solved task, whose groups would never be "
        "kept; lower curation.filter.min_valid, or raise curation.allocation.minimum to it",
    ),
    CurationConflict(
        lambda r, a: (
            isinstance(r.allocation, DarsAllocator)
            and r.allocation.limit(a.group_size) <= a.group_size
        ),
        "curation.allocation.max_trajectories leaves no trajectories for a second phase beyond "
        "rollout.group_size; raise curation.allocation.max_trajectories, or set "
        "curation.allocation.name: fixed",
    ),
    CurationConflict(
        lambda r, a: (
            isinstance(r.allocation, RoundAllocator) and r.allocation.first_round >= a.group_size
        ),
        "curation.allocation.first_round is not below rollout.group_size, the mean number of "
        "trajectories per task, so later rounds have none to share; lower "
        "curation.allocation.first_round or raise rollout.group_size",
    ),
    CurationConflict(
        lambda r, a: (
            isinstance(r.allocation, DuetAllocator)
            and r.allocation.max_trajectories <= r.allocation.first_round
        ),
        "curation.allocation.max_trajectories is not above curation.allocation.first_round, so no "
        "task ever gets more; raise the first",
    ),
    CurationConflict(
        lambda r, a: isinstance(r.allocation, RoundAllocator) and r.filter is not None,
        "curation.filter.name: dapo asks for other groups once the step's trajectories have been "
        "shared, but curation.allocation.name: xrpo and duet share them among all groups of the "
        "step; set curation.filter.name: none, or curation.allocation.name: fixed",
    ),
    CurationConflict(
        lambda r, a: r.steps is not None and not a.entropies,
        "curation.steps.name: high_entropy needs the entropy of sampled tokens, which engine.kind "
        "endpoint and vLLM's own sampler do not report; set engine.vllm.sampler: agentrl or "
        "engine.kind: local, or set curation.steps.name: all",
    ),
)
"""The one list of what cannot be combined. Everything that is not here composes."""


def conflicts(rules: CurationRules, around: CurationContext) -> list[str]:
    """Return the conflicts in words, each with the keys on both sides."""
    return [conflict.text for conflict in CONFLICTS if conflict.holds(rules, around)]


def check(rules: CurationRules, around: CurationContext) -> None:
    """Raise `ConfigError` that names every conflict."""
    if problems := conflicts(rules, around):
        raise ConfigError("; and ".join(problems))
