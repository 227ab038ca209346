"""The loss slot: loss of a token, given its ratio and its advantage."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection, CustomMethod

Aggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]
"""Aggregation methods; counts are those of a whole optimiser step."""


class LossSection(ConfigSection):
    """A loss, with the aggregation that its source defines."""

    AGGREGATION: ClassVar[Aggregation] = "token-mean"


class PpoClipLoss(LossSection):
    """PPO's clipped objective, with clip-higher and dual clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Lower clip of the ratio, at 1 - this value."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip of the ratio, at 1 + this value."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Upper bound of the ratio for negative advantages (dual clip); null disables it."""


class AepoLoss(LossSection):
    """AEPO's entropy-balanced clipping: PPO's loss, where ratios above the clip keep the gradient
    of a ratio at the clip."""

    name: Literal["aepo"] = "aepo"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Lower clip of the ratio, at 1 - this value."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip of the ratio, at 1 + this value; higher ratios keep the gradient of the clip."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Upper bound of the ratio for negative advantages (dual clip); null disables it."""


class GspoLoss(LossSection):
    """GSPO: PPO's clip on the geometric mean of the ratios of a sequence, or of each of its turns;
    each token keeps its own advantage. The loss is averaged per sequence, then over sequences."""

    AGGREGATION: ClassVar[Aggregation] = "seq-mean-token-mean"

    name: Literal["gspo"] = "gspo"
    level: Literal["sequence", "turn"] = "sequence"
    """Unit that shares a ratio; `turn` suits per-turn advantages."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """Lower clip of the ratio, at 1 - this value; means over many tokens stay close to 1."""
    clip_high: float = Field(default=4e-4, ge=0)
    """Upper clip of the ratio, at 1 + this value."""


class CispoLoss(LossSection):
    """CISPO: log-probs weighted by the clipped ratio without its gradient, so that no token is
    dropped."""

    name: Literal["cispo"] = "cispo"
    clip_low: float = Field(default=1.0, ge=0)
    """Lower bound of the weight, at 1 - this value; values of 1 or more set no lower bound."""
    clip_high: float = Field(default=4.0, ge=0)
    """Upper bound of the weight, at 1 + this value."""


class SapoLoss(LossSection):
    """SAPO: a soft gate instead of a clip, which fades out the gradient as the ratio moves away
    from 1. The loss is averaged per sequence, then over sequences."""

    AGGREGATION: ClassVar[Aggregation] = "seq-mean-token-mean"

    name: Literal["sapo"] = "sapo"
    temperature_positive: PositiveFloat = 1.0
    """Sharpness of the gate for positive advantages."""
    temperature_negative: PositiveFloat = 1.05
    """Sharpness of the gate for negative advantages."""


class M2poLoss(LossSection):
    """M2PO: current over behaviour, clipped only as far as needed to keep the mean of its squared
    logarithm small over the optimiser step. It includes the whole correction: set `correction` to
    none."""

    name: Literal["m2po"] = "m2po"
    form: Literal["clip", "mask"] = "clip"
    """`clip`: clip the ratio of tokens that push it further away, as in the authors' code; `mask`:
    drop the tokens that are furthest away regardless of sign, as in the paper."""
    budget: PositiveFloat = 0.04
    """Maximum mean of the squared log-ratio."""
    cut: Literal["exact", "token"] = "exact"
    """Bound of `clip`. `exact`: the log-ratio that uses the whole budget; `token`, as in the
    authors' code: the largest log-ratio of a token that does not exceed it."""
    least_low: float = Field(default=0.0, ge=0, lt=1)
    """`clip` leaves ratios above 1 - this value unchanged."""
    least_high: float = Field(default=0.0, ge=0)
    """`clip` leaves ratios below 1 + this value unchanged."""


class BapoLoss(LossSection):
    """BAPO: PPO's loss with clip bounds that widen over the whole optimiser step until tokens with
    a positive advantage contribute enough."""

    name: Literal["bapo"] = "bapo"
    low: tuple[float, float] = (0.6, 0.9)
    """Lower bound of the ratio: initial and maximum value. It is raised first, as in the authors'
    code; the paper's algorithm 1 raises the upper bound first."""
    high: tuple[float, float] = (1.2, 3.0)
    """Upper bound of the ratio: initial and maximum value."""
    step_low: PositiveFloat = 0.05
    """Increment of the lower bound."""
    step_high: PositiveFloat = 0.05
    """Increment of the upper bound."""
    target: PositiveFloat = 1.0
    """Target contribution of positive tokens relative to negative ones; 1 means equal."""
    counting: Literal["gradient", "value"] = "gradient"
    """Tokens that contribute. `gradient`: those with a gradient within the bounds; `value`: all
    tokens, at their clipped ratio, as in the authors' code."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Upper bound of the ratio for negative advantages (dual clip); null disables it."""


class ReinforceLoss(LossSection):
    """Plain policy gradient, -advantage x log-prob. Samples of other policies are weighted only by
    the correction: set `proximal` to current if a batch makes several optimiser steps, so that the
    weight refers to the policy of each step."""

    name: Literal["reinforce"] = "reinforce"


AnyLoss = Annotated[
    PpoClipLoss
    | AepoLoss
    | GspoLoss
    | CispoLoss
    | SapoLoss
    | M2poLoss
    | BapoLoss
    | ReinforceLoss
    | CustomMethod,
    Field(discriminator="name"),
]


def aggregation_of(section: AnyLoss) -> Aggregation:
    """Return the default aggregation of a loss: token-mean unless its source defines one."""
    return "token-mean" if isinstance(section, CustomMethod) else section.AGGREGATION
