"""M2PO: a trust region on the second moment of log(current / behaviour)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.loss import M2poLoss
from agentrl.learn.loss import (
    LOG_RATIO_LIMIT,
    PlannedLoss,
    PolicyTokens,
    SettledLoss,
    TokenLoss,
    ratio,
)
from agentrl.learn.losses.ppo_clip import pessimistic
from agentrl.learn.method import LearnMethod, always, knobs_of

ROUNDING = 1e-5
"""Log-ratios closer than this are not told apart: a micro-batch rounds in its own way."""


def exact_cut(squares: Float[Tensor, " tokens"], *, budget: float) -> float:
    """Return T with mean(min(squares, T^2)) = `budget`; infinite where the mean is not above it."""
    rising, spent, counts = _rank_squares(squares)
    over = spent + counts * rising > budget * len(rising)
    if not over.any():
        return math.inf
    first = int(over.int().argmax())
    return math.sqrt((budget * len(rising) - float(spent[first])) / float(counts[first]))


def token_cut(squares: Float[Tensor, " tokens"], *, budget: float) -> float:
    """Return the largest T that is a token's, T^2 one of `squares`, within the exact cut.

    Infinite where that is, and the exact one where every token is beyond it.
    """
    limit = exact_cut(squares, budget=budget)
    within = squares[squares.sqrt() <= limit]
    return limit if limit == math.inf or not len(within) else math.sqrt(float(within.max()))


def mask_cut(squares: Float[Tensor, " tokens"], *, budget: float) -> float:
    """Return T such that squares up to T^2 have a mean below `budget`, and more of them have not.

    It lies halfway to the next larger square, so that rounding moves no token across; equal squares
    go together, and the smallest are always kept. Infinite where the mean of all is below `budget`.
    """
    rising, spent, _ = _rank_squares(squares)
    over = spent + rising >= budget * torch.arange(1, len(rising) + 1, device=rising.device)
    if not over.any():
        return math.inf
    largest = rising[rising < rising[int(over.int().argmax())]][-1:]
    largest = largest if len(largest) else rising[:1]
    beyond = rising[rising > largest]
    return math.sqrt(float(largest + beyond[0]) / 2) if len(beyond) else math.inf


def _rank_squares(squares: Float[Tensor, " tokens"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squares in rising order, the sum of those before each, and how many are left."""
    rising = squares.sort().values
    counts = torch.arange(len(rising), 0, -1, device=rising.device)
    return rising, rising.cumsum(0) - rising, counts


def harmful(
    log_ratio: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"]
) -> Bool[Tensor, "*shape"]:
    """Return a mask of the tokens whose own advantage pushes their ratio further from 1."""
    return advantages.sign() * log_ratio > ROUNDING


@dataclass(frozen=True, slots=True)
class M2poObjective:
    """M2PO with its knobs.

    The log-ratios are those of current over behaviour. `clip`: over the harmful tokens the mean of
    min(log-ratio^2, T^2) spends the budget, and every token's ratio is bounded to [exp(-T), exp(T)]
    by PPO's worse of two. `mask`: tokens beyond T are left out, the others have no bound.

    Tokens without weight count in neither. Thresholds hold for the optimiser step, and signs are
    those of each token, where the authors' code takes a micro-batch and the first token's.
    Source: Zheng et al. 2025 (M2PO), arXiv 2510.01161; the floors are of the authors' code.
    """

    form: Literal["clip", "mask"] = "clip"
    budget: float = 0.04
    cut: Literal["exact", "token"] = "exact"
    least_low: float = 0.0
    least_high: float = 0.0

    def plan(self, tokens: PolicyTokens, weights: Float[Tensor, "rows width"]) -> SettledLoss:
        """Return the loss of an optimiser step, its threshold settled."""
        gaps = tokens.logprobs - tokens.behaviour
        counted = tokens.mask & (weights != 0)
        if self.form == "clip":
            counted = counted & harmful(gaps, tokens.advantages)
        cut = self.threshold(gaps[counted].double().square())
        # Of no token and of no budget: infinity has no place in a metric.
        figures = {"m2po/cut": cut} if cut < math.inf else {}

        def loss(tokens: PolicyTokens) -> TokenLoss:
            return self.loss(tokens, cut)

        return SettledLoss(loss, figures)

    def threshold(self, squares: Float[Tensor, " tokens"]) -> float:
        """Return T for the squared log-ratios that count."""
        if self.form == "mask":
            return mask_cut(squares, budget=self.budget)
        if self.cut == "exact":
            return exact_cut(squares, budget=self.budget)
        # The bound is a token's own ratio: it stays on one side of it, however it is rounded.
        return token_cut(squares, budget=self.budget) + ROUNDING

    def loss(self, tokens: PolicyTokens, cut: float) -> TokenLoss:
        gaps = tokens.logprobs - tokens.behaviour
        current = ratio(gaps)
        if self.form == "mask":
            out = tokens.mask & (gaps.detach().abs() > cut)
            losses = torch.where(out, 0.0, -tokens.advantages * current)
            return TokenLoss(losses, out & (tokens.advantages != 0))
        within = min(cut, LOG_RATIO_LIMIT + 1)  # infinity is no bound of a clamp
        low = min(math.exp(-within), 1 - self.least_low)
        high = max(math.exp(within), 1 + self.least_high)
        return pessimistic(current, current.clamp(low, high), tokens.advantages)


def _bind(section: M2poLoss) -> PlannedLoss:
    return PlannedLoss(M2poObjective(**knobs_of(section)).plan)


METHOD = LearnMethod(
    M2poLoss, _bind, "Zheng et al. 2025, arXiv 2510.01161", always("behaviour logprobs")
)
