"""The loss slot: what a token costs, given its ratio and its advantage."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.learning.aggregation import Aggregation
from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection


class LossSection(ConfigSection):
    """A loss, and the aggregation its source defines it with."""

    AGGREGATION: ClassVar[Aggregation] = "token-mean"


class PpoClipLoss(LossSection):
    """PPO's clipped objective with clip-higher and dual clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """A ratio below 1 - this earns nothing more."""
    clip_high: float = Field(default=0.2, ge=0)
    """A ratio above 1 + this earns nothing more."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages; null turns it off."""


class AepoLoss(LossSection):
    """AEPO's entropy-balanced clipping: PPO's loss, in which a ratio above the clip still carries
    the gradient of one at the clip."""

    name: Literal["aepo"] = "aepo"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """A ratio below 1 - this earns nothing more."""
    clip_high: float = Field(default=0.2, ge=0)
    """A ratio above 1 + this pulls like one of 1 + this."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages; null turns it off."""


class GspoLoss(LossSection):
    """GSPO: PPO's clip on the geometric mean of the ratios of a sequence, or of each of its turns;
    every token keeps an advantage of its own. Its mean is taken per sequence, then over them."""

    AGGREGATION: ClassVar[Aggregation] = "seq-mean-token-mean"

    name: Literal["gspo"] = "gspo"
    level: Literal["sequence", "turn"] = "sequence"
    """Unit that shares a ratio; `turn` is for credit per turn."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """A ratio below 1 - this earns nothing more; means of many tokens stay close to 1."""
    clip_high: float = Field(default=4e-4, ge=0)
    """A ratio above 1 + this earns nothing more."""


class CispoLoss(LossSection):
    """CISPO: log-probs weighted by the bounded ratio, which carries no gradient itself, so that no
    token is left out."""

    name: Literal["cispo"] = "cispo"
    clip_low: float = Field(default=1.0, ge=0)
    """A ratio below 1 - this weighs 1 - this; from 1 on there is no lower bound."""
    clip_high: float = Field(default=4.0, ge=0)
    """A ratio above 1 + this weighs 1 + this."""


class SapoLoss(LossSection):
    """SAPO: in place of a clip, a gate that fades the gradient out as the ratio leaves 1. Its mean
    is taken per sequence, then over them."""

    AGGREGATION: ClassVar[Aggregation] = "seq-mean-token-mean"

    name: Literal["sapo"] = "sapo"
    temperature_positive: PositiveFloat = 1.0
    """Sharpness of the gate for positive advantages."""
    temperature_negative: PositiveFloat = 1.05
    """The same for negative ones."""


class M2poLoss(LossSection):
    """M2PO: current over behaviour, bounded just so far that the mean of its squared logarithm
    stays small over the optimiser step. It is the whole correction: set `correction` to none."""

    name: Literal["m2po"] = "m2po"
    form: Literal["clip", "mask"] = "clip"
    """Bound the ratio of the tokens that push it further away, as the authors' code does; or leave
    out the tokens that are furthest away whatever their sign, as the paper does."""
    budget: PositiveFloat = 0.04
    """The largest mean of the squared log-ratio."""
    cut: Literal["exact", "token"] = "exact"
    """Bound of `clip`. `exact`: the log-ratio that spends the whole budget; `token`, as in the
    authors' code: the largest one of a token that does not overspend it."""
    least_low: float = Field(default=0.0, ge=0, lt=1)
    """`clip` never bounds ratios above 1 - this."""
    least_high: float = Field(default=0.0, ge=0)
    """`clip` never bounds ratios below 1 + this."""


class BapoLoss(LossSection):
    """BAPO: PPO's loss with bounds that widen, over the whole optimiser step, until tokens with a
    positive advantage contribute enough."""

    name: Literal["bapo"] = "bapo"
    low: tuple[float, float] = (0.6, 0.9)
    """The lower bound of the ratio: where it begins, and its most. It is raised first."""
    high: tuple[float, float] = (1.2, 3.0)
    """The upper bound of the ratio: where it begins, and its most."""
    step_low: PositiveFloat = 0.05
    """Step by which the lower bound is raised."""
    step_high: PositiveFloat = 0.05
    """Step by which the upper bound is raised."""
    target: PositiveFloat = 1.0
    """Contribution of positive tokens over that of negative ones; 1 is an equal share."""
    counting: Literal["gradient", "value"] = "gradient"
    """Tokens that contribute. `gradient`: those that a bound leaves a gradient; `value`: all of
    them, at their bounded ratio, as the authors' code counts."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages; null turns it off."""


class ReinforceLoss(LossSection):
    """The plain policy gradient, -advantage x log-prob. What other policies sampled is weighed by
    the correction alone: set `proximal` to current, so that it weighs the policy of each optimiser
    step, where a batch makes several of them."""

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
    """Return the aggregation a loss comes with, which is token-mean unless its source fixes one."""
    return "token-mean" if isinstance(section, CustomMethod) else section.AGGREGATION
