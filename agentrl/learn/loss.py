"""Step 8 of the flow: the loss of a token, given its ratio and its advantage. The contract."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut to +-this before `exp`; e^20 is finite in every type we compute in."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTokens:
    """What a loss may look at: one row per sequence. Everything is 0 off the mask; only `logprobs`
    carries gradient."""

    logprobs: Float[Tensor, "rows width"]
    """Of the current policy."""
    proximal: Float[Tensor, "rows width"]
    """Of the policy the clip is anchored to."""
    behaviour: Float[Tensor, "rows width"]
    """Of the policy that sampled; the proximal one's where the engine gave no number."""
    advantages: Float[Tensor, "rows width"]
    mask: Bool[Tensor, "rows width"]
    turns: Int[Tensor, "rows width"]
    """The turn of each token, counted from 0 in every sequence."""

    @property
    def log_ratio(self) -> Float[Tensor, "rows width"]:
        """Return log(current / proximal), not cut."""
        return self.logprobs - self.proximal


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """A loss per token, and where clipping took the gradient away."""

    losses: Float[Tensor, "*shape"]
    clipped: Bool[Tensor, "*shape"]


LossFunction = Callable[[PolicyTokens], TokenLoss]
"""The loss slot. The loss of a token is zero, with zero gradient, where its advantage is zero,
unless the method says that it needs `idle rows`: the trainer relies on it and runs no backward
pass for trajectories without credit."""


@dataclass(frozen=True, slots=True)
class PlannedLoss:
    """A loss with thresholds that depend on all tokens of an optimiser step.

    `plan` gets them in one block, with the log-probs of the weights before the step and without
    gradient, and returns the loss for its micro-batches. So the result does not depend on how the
    step is split.
    """

    plan: Callable[[PolicyTokens], LossFunction]


AnyLossFunction = LossFunction | PlannedLoss


def ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return exp of the log-ratio cut to +-20; beyond that it is constant and has no gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
