"""Config of an evaluation."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class BudgetSection(ConfigSection):
    """Upper limits; null sets none."""

    tokens: PositiveInt | None = None
    """Sampled tokens."""
    turns: PositiveInt | None = None
    """Policy messages."""
    tool_calls: PositiveInt | None = None
    """Tool calls answered by the environment."""
    env_s: PositiveFloat | None = None
    """Time in the environment and its tools, in seconds."""
    money: PositiveFloat | None = None
    """Cost of tokens at `evaluate.budget.prices`."""


class PricesSection(ConfigSection):
    """Token prices, in any currency."""

    prompt_per_million: float = Field(default=0.0, ge=0)
    """Price per million tokens of the context of each turn."""
    sampled_per_million: float = Field(default=0.0, ge=0)
    """Price per million sampled tokens."""


class BudgetsSection(ConfigSection):
    """Budgets of an evaluation; the report shows how much was spent."""

    each: BudgetSection = BudgetSection()
    """Budget per trajectory. A trajectory that exceeds it is truncated before its next turn and
    keeps its reward so far."""
    total: BudgetSection = BudgetSection()
    """Budget of the whole evaluation: once it is exceeded, no further task starts, and running ones
    finish."""
    prices: PricesSection = PricesSection()
    """Token prices, for budgets of `money`."""


class UntilSection(ConfigSection):
    """Early stopping: end the evaluation once pass@1 is known precisely enough."""

    half_width: float = Field(gt=0, lt=0.5)
    """Target half-width of the confidence interval."""
    min_tasks: PositiveInt = 50
    """Number of tasks before the first check."""
    every: PositiveInt = 10
    """Number of tasks between checks."""


class ScalingSection(ConfigSection):
    """Test-time scaling: spend several attempts on each task of `agentrl eval` and submit one."""

    name: Literal["majority", "best_of", "rtv", "pdr", "sage"]
    """Method of choosing the submitted attempt. `majority`: the most frequent answer; `best_of`:
    the verifier's choice; `rtv`: a tournament of notes; `pdr`: one of the attempts that read the
    best notes; `sage`: a second attempt with a plan."""
    samples: PositiveInt = 16
    """Attempts per task; for `pdr`, attempts in each of its two rounds."""
    answer: str | None = None
    """`module:function` that extracts the answer counted by `majority` from the last message; null
    uses the text, ignoring case and whitespace."""
    verifier: str | None = None
    """`module:function` of the task and the messages that scores an attempt; `best_of` submits the
    highest."""
    check: str | None = None
    """`module:function` of the task and the messages; if it is true for the first attempt, `sage`
    submits that attempt."""
    group: int = Field(default=2, ge=2)
    """Number of attempts compared in one vote."""
    votes: PositiveInt = 8
    """Number of votes per comparison, each with a different order."""
    keep: PositiveInt = 4
    """Number of notes shown in the second round of `pdr`."""
    note_tokens: PositiveInt = 1024
    """Maximum number of tokens of a note or a plan."""
    transcript_chars: PositiveInt = 12_000
    """Maximum number of characters of an attempt that are shown to the writer of its note; the
    middle is cut."""


class EvaluateSection(ConfigSection):
    """Evaluation on held-out tasks."""

    tasks: PositiveInt = 200
    """Number of held-out tasks."""
    samples_per_task: PositiveInt = 1
    """Number of trajectories per held-out task."""
    k: tuple[PositiveInt, ...] = (1,)
    """Values of k to report pass@k and pass^k for; none may exceed `samples_per_task`."""
    threshold: float = 1.0
    """Minimum reward of a passing trajectory."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of the evaluated policy; 0 is greedy."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations during training; 0 evaluates only before and after."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of all intervals."""
    interval: Literal["wilson", "bootstrap"] = "wilson"
    """Interval method: Wilson's with the task as the unit, or the BCa bootstrap over tasks."""
    budget: BudgetsSection = BudgetsSection()
    """Budgets of an evaluation."""
    until: UntilSection | None = None
    """Early stopping; null plays all tasks."""
    scaling: ScalingSection | None = None
    """Test-time scaling, for `agentrl eval` only."""
