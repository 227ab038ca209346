"""Curation's keys: one section per slot, a method chosen by name with its own knobs."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class StreamSampler(ConfigSection):
    """The environment's own order, then shuffled epochs."""

    name: Literal["stream"] = "stream"


class UniformSampler(ConfigSection):
    """Different tasks, all equally likely in every step."""

    name: Literal["uniform"] = "uniform"


class CdasSampler(ConfigSection):
    """CDAS: half from just below the policy's competence, half from just above."""

    name: Literal["cdas"] = "cdas"
    warmup_steps: NonNegativeInt = 1
    """Steps of uniform draws."""
    first_halved: bool = False
    """Count the initial 0 as an observation, as the released code does."""


class VadeSampler(ConfigSection):
    """VADE: highest p (1 - p)^2 of a success rate p drawn from what is known of each task."""

    name: Literal["vade"] = "vade"
    local_decay: float = Field(default=0.7, gt=0, le=1)
    """Decay of a task's old evidence when it is observed again; 1 forgets nothing."""
    global_decay: float = Field(default=0.995, gt=0, le=1)
    """Decay of every task's evidence at the end of every step."""
    max_evidence: PositiveFloat | None = 32.0
    """Most trajectories a task may count for; null sets no bound."""


class FixedAllocation(ConfigSection):
    """`rollout.group_size` trajectories for every task."""

    name: Literal["fixed"] = "fixed"


class DartAllocation(ConfigSection):
    """DART: fewer trajectories for nearly solved tasks, and at most a bit longer than a success."""

    name: Literal["dart"] = "dart"
    threshold: float = Field(default=0.6, gt=0, le=1)
    """Success rate from which a task gets fewer; 1.0 is the released code's."""
    minimum: PositiveInt = 1
    """Fewest trajectories; the formula itself never goes below 2."""
    window: PositiveInt = 8
    """Latest trajectories that the success rate is taken over."""
    length_slack: float | None = Field(default=1.5, ge=1)
    """Turn cap over the longest success; 1.0 is the paper's, null leaves `rollout.max_turns`."""


class DarsAllocation(ConfigSection):
    """DARS: a second phase of trajectories for tasks that succeed less than half of the time."""

    name: Literal["dars"] = "dars"
    form: Literal["equal", "hardness"] = "equal"
    """Lift hard tasks to equal mass, or in proportion to their hardness."""
    max_trajectories: PositiveInt | None = None
    """Most trajectories of both phases. Null is 4 (equal) or 8 (hardness) times
    `rollout.group_size`."""
    normalise_std: bool = False
    """Take the mass of a group from advantages over the standard deviation."""
    budget_s: PositiveFloat | None = None
    """Most seconds of trajectories that a second phase may add, by the first phase's mean."""


class NoFilter(ConfigSection):
    """Every group trains."""

    name: Literal["none"] = "none"


class DapoFilter(ConfigSection):
    """DAPO's dynamic sampling: groups whose rewards differ train, others are replaced."""

    name: Literal["dapo"] = "dapo"
    min_spread: float = Field(default=1e-6, ge=0)
    """The standard deviation of a group's rewards must be above it; 0.3 in UI-S1."""
    spread_of: Literal["reward", "first_return", "last_turn"] = "reward"
    """Values that the spread is of. In UI-S1 `first_return`, the return up to the first mismatch,
    or `last_turn`, the last turn's pay."""
    gamma: float = Field(default=0.5, ge=0, le=1)
    """Discount per turn of that return."""
    match_reward: float = 1.0
    """A turn that is paid less is a mismatch, which ends that return and is not in it."""
    right_at: float = 1.0
    """Equal rewards from here on count as all right."""
    wrong_at: float = 0.0
    """Equal rewards up to here count as all wrong."""
    max_mean_reward: float | None = None
    """Groups whose mean reward is at least this are too easy; null sets no bound."""
    min_valid: PositiveInt = 2
    """Fewest trajectories with a reward, of those that did not fail."""
    singletons: bool = True
    """Keep groups of one trajectory on purpose, which have no spread to measure."""
    max_refills: NonNegativeInt = 9
    """A step that has dropped so many times its groups, and once more, asks for no others."""
    short: Literal["train", "stop"] = "train"
    """With fewer groups than wanted at the end: train on them, or stop the run."""


class NoPool(ConfigSection):
    """Nothing is lent."""

    name: Literal["none"] = "none"


class SuccessPoolSection(ConfigSection):
    """DART's experience pool: an old success for a group that has none."""

    name: Literal["success"] = "success"
    max_age: NonNegativeInt | None = 8
    """Oldest version difference of a lent token; null lends any."""
    max_uses: PositiveInt | None = 4
    """Batches one success may be lent to; null sets no bound."""
    per_task: PositiveInt = 4
    """Successes kept of each task."""


class AllMembers(ConfigSection):
    """Every trajectory of a group trains."""

    name: Literal["all"] = "all"


class BalancedMembers(ConfigSection):
    """DART's groups: some of the trajectories train, a success and a failure among them."""

    name: Literal["balanced"] = "balanced"
    most: int = Field(default=8, ge=2)
    """Trajectories of one group that train; one of each outcome that there is, others at random."""
    min_failed_turns: NonNegativeInt = 0
    """A trajectory without success trains from so many policy messages on; 4 in DART's code."""


class AllSteps(ConfigSection):
    """Every sampled token trains."""

    name: Literal["all"] = "all"


class HighEntropySection(ConfigSection):
    """DART's high-entropy steps: of a group's turns, those the policy was least sure of."""

    name: Literal["high_entropy"] = "high_entropy"
    keep: float = Field(default=0.8, gt=0, le=1)
    """Share of the turns, by entropy."""
    how: Literal["percentile", "top"] = "percentile"
    """At or above the percentile 1 - keep, ties included, or exactly the top share."""
    weight: Literal["mask", "renormalised"] = "mask"
    """Kept turns weigh 1, or all tokens over kept ones, so that a group weighs what it did."""


Sampler = Annotated[
    StreamSampler | UniformSampler | CdasSampler | VadeSampler, Field(discriminator="name")
]
Allocation = Annotated[
    FixedAllocation | DartAllocation | DarsAllocation, Field(discriminator="name")
]
Filter = Annotated[NoFilter | DapoFilter, Field(discriminator="name")]
Pool = Annotated[NoPool | SuccessPoolSection, Field(discriminator="name")]
Members = Annotated[AllMembers | BalancedMembers, Field(discriminator="name")]
Steps = Annotated[AllSteps | HighEntropySection, Field(discriminator="name")]


class CurationSection(ConfigSection):
    """Choice of tasks for a step, of the trajectories for each, and of the groups that train."""

    sampler: Sampler = StreamSampler()
    allocation: Allocation = FixedAllocation()
    filter: Filter = NoFilter()
    pool: Pool = NoPool()
    members: Members = AllMembers()
    steps: Steps = AllSteps()
    success_above: float = 0.0
    """A reward above this is a success, for the pool, for `members` and for DART's turn caps."""
    revisit_every: PositiveInt | None = None
    """Steps after which a task that was not drawn comes first; null lets the sampler decide."""
