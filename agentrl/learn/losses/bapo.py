"""BAPO: clip bounds that adapt until positive tokens contribute their share."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import BapoLoss
from agentrl.learn.loss import PlannedLoss, PolicyTokens, SettledLoss, TokenLoss, ratio
from agentrl.learn.losses.ppo_clip import ppo_clip
from agentrl.learn.method import LearnMethod, knobs_of

GRID = 1e-6
"""Bounds stand wide of their grid by this much of themselves: round ratios lie on it, and rounding
must not decide on which side they are."""


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """Bounds of the ratio."""

    low: float
    high: float


def balance(
    ratios: Float[Tensor, " tokens"],
    credit: Float[Tensor, " tokens"],
    bounds: ClipBounds,
    *,
    counting: Literal["gradient", "value"],
) -> float:
    """Return the contribution of positive tokens over that of negative; infinite without those.

    A token contributes its ratio times the size of its credit. `gradient` leaves out what a bound
    takes the gradient from; `value` counts it at the bound.
    """
    positive, negative = credit > 0, credit < 0
    if counting == "gradient":
        positive, negative = positive & (ratios <= bounds.high), negative & (ratios >= bounds.low)
    bounded = torch.where(credit > 0, ratios.clamp(max=bounds.high), ratios.clamp(min=bounds.low))
    shares = bounded * credit.abs()
    above, below = float(shares[positive].sum()), float(shares[negative].sum())
    return above / below if below else math.inf


@dataclass(frozen=True, slots=True)
class BapoObjective:
    """BAPO with its knobs.

    The bounds begin at their tightest in every optimiser step; the lower one is raised up to its
    most, then the upper one, until the balance of the step's tokens reaches `target`. Weights of
    the correction count. A step without any positive token has a loss of 0: its bounds would say
    nothing.
    Source: Xi et al. 2025 (BAPO), arXiv 2510.18927, and its code, whose order this is; algorithm 1
    of the paper raises the upper bound first. The code counts negative tokens at the lower bound,
    so that raising it cannot help; `gradient` counts what it leaves a gradient.
    """

    low: tuple[float, float] = (0.6, 0.9)
    high: tuple[float, float] = (1.2, 3.0)
    step_low: float = 0.05
    step_high: float = 0.05
    target: float = 1.0
    counting: Literal["gradient", "value"] = "gradient"
    dual_clip: float | None = 3.0

    def plan(self, tokens: PolicyTokens, weights: Float[Tensor, "rows width"]) -> SettledLoss:
        """Return the loss of an optimiser step, its bounds settled."""
        ratios = ratio(tokens.log_ratio[tokens.mask].double())
        credit = (tokens.advantages * weights)[tokens.mask].double()
        bounds = self.bounds(ratios, credit)
        figures = {"bapo/low": bounds.low, "bapo/high": bounds.high}
        if bool((credit < 0).any()) and not bool((credit > 0).any()):
            return SettledLoss(_zero_loss, figures)
        return SettledLoss(partial(self.loss, bounds=bounds), figures)

    def bounds(
        self, ratios: Float[Tensor, " tokens"], credit: Float[Tensor, " tokens"]
    ) -> ClipBounds:
        """Return the bounds for tokens of these ratios and advantages x weights."""
        lows = _list_bounds(*self.low, step=self.step_low)
        highs = _list_bounds(*self.high, step=self.step_high)
        pairs = [(low, highs[0]) for low in lows] + [(lows[-1], high) for high in highs[1:]]
        tried = [ClipBounds(low * (1 - GRID), high * (1 + GRID)) for low, high in pairs]
        for bounds in tried:
            if balance(ratios, credit, bounds, counting=self.counting) >= self.target:
                return bounds
        return tried[-1]

    def loss(self, tokens: PolicyTokens, *, bounds: ClipBounds) -> TokenLoss:
        return ppo_clip(
            tokens.log_ratio,
            tokens.advantages,
            clip_low=1 - bounds.low,
            clip_high=bounds.high - 1,
            dual_clip=self.dual_clip,
        )


def _list_bounds(start: float, most: float, *, step: float) -> list[float]:
    count = max(math.ceil((most - start) / step - GRID), 0)
    return [min(start + index * step, most) for index in range(count + 1)]


def _zero_loss(tokens: PolicyTokens) -> TokenLoss:
    return TokenLoss(0.0 * tokens.logprobs, tokens.mask & (tokens.advantages != 0))


def _bind(section: BapoLoss) -> PlannedLoss:
    return PlannedLoss(BapoObjective(**knobs_of(section)).plan)


METHOD = LearnMethod(BapoLoss, _bind, "Xi et al. 2025, arXiv 2510.18927")
