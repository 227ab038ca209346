"""The optimiser of the policy."""

from typing import Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection


class AdamWSection(ConfigSection):
    """AdamW with a linear warm-up and an optional decay of the learning rate over the run."""

    learning_rate: PositiveFloat = 1e-6
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and second moments."""
    epsilon: PositiveFloat = 1e-8
    """Added to the square root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of all parameters, norms and embeddings included; not applied in a step without
    advantages."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of updates until the full rate; the first update already uses a rate above 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate, multiplied with the warm-up. It runs from the full rate, at the
    first step, to the final rate, at the step after the last one of `run.steps`."""
    final_learning_rate_fraction: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a fraction of `learning_rate`."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are clipped."""
