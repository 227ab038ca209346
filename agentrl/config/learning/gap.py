"""The alarm on how far the engine's log-probs are from the trainer's."""

from typing import Literal

from pydantic import PositiveFloat

from agentrl.config.section import ConfigSection


class GapAlarmSection(ConfigSection):
    """Looks at tokens that the trainer's own version sampled, where only numerics may differ."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` ends the run before the weights move; `warn` says it once and goes on."""
    mean_abs: PositiveFloat = 0.1
    """Greatest mean of |log trainer - log engine|, in nats. Right ones are below 1e-4 with float32
    on both sides, and about 0.02 with bfloat16; a wrong temperature makes more than 0.1."""
