"""The optimiser of the policy."""

from typing import Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection


class AdamWSection(ConfigSection):
    """AdamW with a linear warm-up, and a rate that falls over the steps of the run if asked to."""

    learning_rate: PositiveFloat = 1e-6
    """The rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """On every parameter, norms and embeddings too; no decay in a step without credit."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates until the full rate; the first one already moves."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the rate, multiplied with the warm-up. It goes from the full rate, at the first
    step, to the final one, at the step after the last of `run.steps`."""
    final_learning_rate_fraction: float = Field(default=0.0, ge=0, le=1)
    """Final rate, as a share of `learning_rate`."""
    max_grad_norm: PositiveFloat = 1.0
    """A longer gradient is shortened to this."""
