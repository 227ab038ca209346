"""The alarm on the gap between the log-probs of engine and trainer."""

from typing import Literal

from pydantic import PositiveFloat

from agentrl.config.section import ConfigSection


class GapAlarmSection(ConfigSection):
    """Compares tokens sampled at the trainer's own version, which may differ only numerically."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` ends the run before the weights change; `warn` prints a warning once and continues."""
    mean_abs: PositiveFloat = 0.1
    """Maximum mean of |log trainer - log engine|, in nats. Expected values are below 1e-4 with
    float32 on both sides, and about 0.02 with bfloat16; a wrong temperature causes more than
    0.1."""
