"""The learning half's keys: one section per slot, a method chosen by name with its own knobs."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import Section


class GrpoAdvantage(Section):
    """GRPO: reward minus the group's mean, over its standard deviation."""

    name: Literal["grpo"] = "grpo"
    normalise_std: bool = True
    """Off gives Dr.GRPO's centred reward."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


class PpoClipLoss(Section):
    """PPO's clipped objective with clip-higher and dual clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """A ratio below 1 - this earns nothing more."""
    clip_high: float = Field(default=0.2, ge=0)
    """A ratio above 1 + this earns nothing more."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages; null turns it off."""


class NoCorrection(Section):
    """Trust the engine: the behaviour policy is taken as the proximal one."""

    name: Literal["none"] = "none"


class TruncatedCorrection(Section):
    """Truncated importance sampling on proximal over behaviour."""

    name: Literal["tis"] = "tis"
    level: Literal["token", "sequence"] = "token"
    """A weight per token, or the product over a trajectory for all its tokens."""
    cap: PositiveFloat = 2.0
    """Weights above it are cut to it."""


class AdamWSection(Section):
    """AdamW with a linear warm-up and a constant rate after it."""

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
    max_grad_norm: PositiveFloat = 1.0
    """A longer gradient is shortened to this."""


Correction = Annotated[NoCorrection | TruncatedCorrection, Field(discriminator="name")]


class LearnSection(Section):
    """How a batch of groups becomes new weights."""

    advantage: GrpoAdvantage = GrpoAdvantage()
    loss: PpoClipLoss = PpoClipLoss()
    correction: Correction = TruncatedCorrection()
    aggregation: Literal[
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
    ] = "token-mean"
    """How token losses become one number; counts are those of the whole optimiser step."""
    minibatches: PositiveInt = 1
    """Optimiser steps per pass over the batch; each takes an equal share of its trajectories."""
    epochs: PositiveInt = 1
    """Passes over the batch."""
    micro_batch_tokens: PositiveInt = 8192
    """Most padded tokens in one forward pass, at least `engine.context_tokens`; never changes the
    result."""
    optimizer: AdamWSection = AdamWSection()
