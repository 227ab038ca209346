"""Config of an evaluation."""

from typing import Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import Section


class EvaluateSection(Section):
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
    """Of the evaluated policy; 0 is greedy."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations during training; 0 evaluates before and after only."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Of every interval."""
    interval: Literal["wilson", "bootstrap"] = "wilson"
    """How an interval is made: Wilson's with the task as the unit, or the BCa bootstrap over
    tasks."""
