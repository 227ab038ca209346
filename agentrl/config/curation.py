"""Curation keys: one section per slot, with a method chosen by name and its own keys."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class StreamSampler(ConfigSection):
    """Tasks in the environment's own order, then in shuffled epochs."""

    name: Literal["stream"] = "stream"


class UniformSampler(ConfigSection):
    """Distinct tasks, sampled uniformly in each step."""

    name: Literal["uniform"] = "uniform"


class CdasSampler(ConfigSection):
    """CDAS: half of the tasks from just below the policy's competence, half from just above."""

    name: Literal["cdas"] = "cdas"
    warmup_steps: NonNegativeInt = 1
    """Number of initial steps with uniform sampling."""
    first_halved: bool = False
    """Count the initial value 0 as an observation, as the released code does."""


class VadeSampler(ConfigSection):
    """VADE: tasks with the highest p (1 - p)^2, where the success rate p is drawn from each task's
    posterior."""

    name: Literal["vade"] = "vade"
    local_decay: float = Field(default=0.7, gt=0, le=1)
    """Decay of a task's previous evidence when the task is observed again; 1 keeps it all."""
    global_decay: float = Field(default=0.995, gt=0, le=1)
    """Decay of all evidence at the end of each step."""
    max_evidence: PositiveFloat | None = 32.0
    """Maximum number of trajectories that a task's evidence may represent; null sets no limit."""


class FixedAllocation(ConfigSection):
    """`rollout.group_size` trajectories for every task."""

    name: Literal["fixed"] = "fixed"


class DartAllocation(ConfigSection):
    """DART: fewer trajectories for tasks that are nearly solved, with a turn limit just above the
    longest success."""

    name: Literal["dart"] = "dart"
    threshold: float = Field(default=0.6, gt=0, le=1)
    """Success rate from which a task gets fewer trajectories; 1.0 matches the released code."""
    minimum: PositiveInt = 1
    """Minimum number of trajectories; the formula itself never goes below 2."""
    window: PositiveInt = 8
    """Number of latest trajectories over which the success rate is computed."""
    length_slack: float | None = Field(default=1.5, ge=1)
    """Turn limit relative to the longest success; 1.0 matches the paper, null leaves
    `rollout.max_turns`."""


class DarsAllocation(ConfigSection):
    """DARS: a second phase of rollouts for tasks that succeed less than half of the time."""

    name: Literal["dars"] = "dars"
    form: Literal["equal", "hardness"] = "equal"
    """Raise hard tasks to the same total weight, or in proportion to their difficulty."""
    max_trajectories: PositiveInt | None = None
    """Maximum number of trajectories of both phases. Null means 4 (`equal`) or 8 (`hardness`) times
    `rollout.group_size`."""
    normalise_std: bool = False
    """Compute a group's total weight from advantages divided by the standard deviation."""
    budget_s: PositiveFloat | None = None
    """Maximum rollout time, in seconds, that a second phase may add, estimated from the first
    phase's mean."""


class XrpoAllocation(ConfigSection):
    """XRPO: a few trajectories for every task, then rounds of more for those whose mean reward is
    least certain; `rollout.group_size` on average."""

    name: Literal["xrpo"] = "xrpo"
    first_round: int = Field(default=4, ge=2)
    """Number of trajectories of each task in the first round."""
    rounds: int = Field(default=3, ge=2)
    """Number of rounds in a step, including the first one."""
    exploration: float = Field(default=0.1, ge=0)
    """Weight of the bonus for tasks with few trajectories. At 1 it outweighs the uncertainty, and
    all tasks get about the same number."""


class DuetAllocation(ConfigSection):
    """DUET: a few trajectories for every task, then the remaining tokens of
    `rollout.group_size` trajectories per task go where gradients differ most per token."""

    name: Literal["duet"] = "duet"
    first_round: int = Field(default=4, ge=2)
    """Number of trajectories of each task in the first round."""
    rounds: int = Field(default=2, ge=2)
    """Number of rounds in a step, including the first one."""
    max_trajectories: PositiveInt = 32
    """Maximum number of trajectories of one task."""


class NoFilter(ConfigSection):
    """No filter: all groups train."""

    name: Literal["none"] = "none"


class DapoFilter(ConfigSection):
    """DAPO's dynamic sampling: groups with differing rewards train, all others are replaced."""

    name: Literal["dapo"] = "dapo"
    min_spread: float = Field(default=1e-6, ge=0)
    """Minimum standard deviation of a group's rewards (exclusive); 0.3 in UI-S1."""
    spread_of: Literal["reward", "first_return", "last_turn"] = "reward"
    """Value whose spread is measured. In UI-S1: `first_return`, the return up to the first
    mismatch, or `last_turn`, the reward of the last turn."""
    gamma: float = Field(default=0.5, ge=0, le=1)
    """Discount per turn of `first_return`."""
    match_reward: float = 1.0
    """Turns with a lower reward are mismatches. A mismatch ends `first_return` and is not included
    in it."""
    right_at: float = 1.0
    """If all rewards are equal and at least this, the group counts as solved."""
    wrong_at: float = 0.0
    """If all rewards are equal and at most this, the group counts as failed."""
    max_mean_reward: float | None = None
    """Groups with at least this mean reward are dropped as too easy; null disables the check."""
    min_valid: PositiveInt = 2
    """Minimum number of trajectories that did not fail."""
    singletons: bool = True
    """Keep groups that have a single trajectory by design, for which no spread can be measured."""
    max_refills: NonNegativeInt = 9
    """Maximum number of refills of a step: once `max_refills` + 1 times its groups have been
    dropped, no more are requested."""
    short: Literal["train", "stop"] = "train"
    """If fewer groups than needed remain: train on them, or stop the run."""


class NoPool(ConfigSection):
    """No pool."""

    name: Literal["none"] = "none"


class SuccessPoolSection(ConfigSection):
    """DART's experience pool: adds a past success to a group that has none."""

    name: Literal["success"] = "success"
    max_age: NonNegativeInt | None = 8
    """Maximum version difference of a reused token; null sets no limit."""
    max_uses: PositiveInt | None = 4
    """Maximum number of batches that reuse one success; null sets no limit."""
    per_task: PositiveInt = 4
    """Number of successes kept per task."""


class AllMembers(ConfigSection):
    """All trajectories of a group train."""

    name: Literal["all"] = "all"


class BalancedMembers(ConfigSection):
    """DART: only some trajectories of a group train, including a success and a failure."""

    name: Literal["balanced"] = "balanced"
    most: int = Field(default=8, ge=2)
    """Maximum number of trajectories per group that train: one of each outcome present, the rest at
    random."""
    min_failed_turns: NonNegativeInt = 0
    """A trajectory without success trains only if it has at least this many policy messages; 4 in
    DART's code."""


class AllSteps(ConfigSection):
    """All sampled tokens train."""

    name: Literal["all"] = "all"


class HighEntropySection(ConfigSection):
    """DART's high-entropy steps: only the turns of a group at which the policy was least certain
    train."""

    name: Literal["high_entropy"] = "high_entropy"
    keep: float = Field(default=0.8, gt=0, le=1)
    """Fraction of turns to keep, by entropy."""
    how: Literal["percentile", "top"] = "percentile"
    """Keep turns at or above the percentile 1 - `keep`, ties included, or exactly the top
    fraction."""
    weight: Literal["mask", "renormalised"] = "mask"
    """Weight of kept turns: 1, or all tokens divided by kept tokens, which preserves the total
    weight of the group."""


Sampler = Annotated[
    StreamSampler | UniformSampler | CdasSampler | VadeSampler, Field(discriminator="name")
]
Allocation = Annotated[
    FixedAllocation | DartAllocation | DarsAllocation | XrpoAllocation | DuetAllocation,
    Field(discriminator="name"),
]
Filter = Annotated[NoFilter | DapoFilter, Field(discriminator="name")]
Pool = Annotated[NoPool | SuccessPoolSection, Field(discriminator="name")]
Members = Annotated[AllMembers | BalancedMembers, Field(discriminator="name")]
Steps = Annotated[AllSteps | HighEntropySection, Field(discriminator="name")]


class CurationSection(ConfigSection):
    """Choice of the tasks of a step, the number of trajectories per task, and the groups that
    train."""

    sampler: Sampler = StreamSampler()
    allocation: Allocation = FixedAllocation()
    filter: Filter = NoFilter()
    pool: Pool = NoPool()
    members: Members = AllMembers()
    steps: Steps = AllSteps()
    success_above: float = 0.0
    """A trajectory with a reward above this is a success, for `pool`, `members`, and DART's turn
    limits."""
    revisit_every: PositiveInt | None = None
    """Number of steps after which a task that was not drawn is scheduled first; null leaves it to
    the sampler."""
