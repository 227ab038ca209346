"""Config of an evaluation."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class BudgetSection(ConfigSection):
    """Upper bounds; null is none."""

    tokens: PositiveInt | None = None
    """Sampled tokens."""
    turns: PositiveInt | None = None
    """Policy messages."""
    tool_calls: PositiveInt | None = None
    """Calls that the environment answered."""
    env_s: PositiveFloat | None = None
    """Seconds in the environment, its tools included."""
    money: PositiveFloat | None = None
    """Cost of the tokens at `evaluate.budget.prices`."""


class PricesSection(ConfigSection):
    """Prices of tokens, in any currency."""

    prompt_per_million: float = Field(default=0.0, ge=0)
    """Price of the context that every turn is sampled from."""
    sampled_per_million: float = Field(default=0.0, ge=0)
    """Price of sampled tokens."""


class BudgetsSection(ConfigSection):
    """Budgets of an evaluation; the report says what was spent."""

    each: BudgetSection = BudgetSection()
    """Budget of one trajectory. It is truncated before its next turn and keeps what it has
    earned."""
    total: BudgetSection = BudgetSection()
    """Budget of all of them: no further task is begun, and those under way play on."""
    prices: PricesSection = PricesSection()
    """Prices of tokens, for the budgets of `money`."""


class UntilSection(ConfigSection):
    """Stop before the last task, as soon as pass@1 is known well enough."""

    half_width: float = Field(gt=0, lt=0.5)
    """Half the width of the interval that is enough."""
    min_tasks: PositiveInt = 50
    """Tasks before the first look."""
    every: PositiveInt = 10
    """Tasks between two looks."""


class ScalingSection(ConfigSection):
    """Spend more than one attempt on each task of `agentrl eval`."""

    name: Literal["majority", "best_of", "rtv", "pdr", "sage"]
    """Method that picks the submitted attempt. `majority`: the answer that most give; `best_of`:
    the verifier's choice; `rtv`: a tournament of notes; `pdr`: one among attempts that read the
    best notes; `sage`: a second attempt with a plan."""
    samples: PositiveInt = 16
    """Attempts at a task; of `pdr` in each of its two rounds."""
    answer: str | None = None
    """`module:function` from what was said last to the answer that `majority` counts; null takes
    the text, without case and spaces."""
    verifier: str | None = None
    """`module:function` of the task and the messages; `best_of` submits what it scores highest."""
    check: str | None = None
    """`module:function` of the task and the messages: where it is true of the first attempt,
    `sage` submits that."""
    group: int = Field(default=2, ge=2)
    """Attempts that a vote is between."""
    votes: PositiveInt = 8
    """Votes per group, each shown in another order."""
    keep: PositiveInt = 4
    """Notes that the second round of `pdr` reads."""
    note_tokens: PositiveInt = 1024
    """Most tokens of a note or a plan."""
    transcript_chars: PositiveInt = 12_000
    """Most characters of an attempt that the writer of its note is shown; its middle goes first."""


class EvaluateSection(ConfigSection):
    """Evaluation on held-out tasks."""

    tasks: PositiveInt = 200
    """Held-out tasks."""
    samples_per_task: PositiveInt = 1
    """Trajectories per held-out task."""
    k: tuple[PositiveInt, ...] = (1,)
    """pass@k and pass^k for each k; no k may exceed `samples_per_task`."""
    threshold: float = 1.0
    """A trajectory passes when its reward is at least this."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the evaluated policy; 0 is greedy."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations during training; 0 evaluates before and after only."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence of every interval."""
    interval: Literal["wilson", "bootstrap"] = "wilson"
    """Method for intervals: Wilson's with the task as the unit, or the BCa bootstrap over tasks."""
    budget: BudgetsSection = BudgetsSection()
    """Budgets of an evaluation."""
    until: UntilSection | None = None
    """Rule for stopping early; null plays every task."""
    scaling: ScalingSection | None = None
    """Several attempts at each task, of which one is submitted; for `agentrl eval` alone."""
