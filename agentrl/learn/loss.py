"""Step 8 of the flow: the loss of a token, given its ratio and its advantage. The contract."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentrl.config.section import ConfigSection
from agentrl.learn.method import bind_knobs

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut to +-this before `exp`; e^20 is finite in every type we compute in."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTokens:
    """Inputs of a loss: one row per sequence. Everything is 0 off the mask; only `logprobs` carries
    gradient."""

    logprobs: Float[Tensor, "rows width"]
    proximal: Float[Tensor, "rows width"]
    """Log-probs of the policy the clip is anchored to."""
    behaviour: Float[Tensor, "rows width"]
    """Log-probs of the policy that sampled; the proximal one's where the engine gave no number."""
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
    """A loss per token, and where a bound weakened the gradient or took it away."""

    losses: Float[Tensor, "*shape"]
    clipped: Bool[Tensor, "*shape"]


LossFunction = Callable[[PolicyTokens], TokenLoss]
"""The loss slot. The loss of a token is zero, with zero gradient, where its advantage is zero,
unless the method says that it needs `idle rows`: the trainer relies on it and runs no backward
pass for trajectories without credit."""


@dataclass(frozen=True, slots=True)
class SettledLoss:
    """A planned loss with its thresholds, and what there is to know about them, by metric."""

    loss: LossFunction
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class PlannedLoss:
    """A loss with thresholds that depend on all tokens of an optimiser step.

    `plan` gets them in one block, with the log-probs of the weights before the step and without
    gradient, and what the loss of each token will be multiplied by: correction, rejection and the
    sample's own weight. It returns the loss for the step's micro-batches, so that the result does
    not depend on how the step is split. A micro-batch rounds differently: no token may lie on a
    threshold.
    """

    plan: Callable[[PolicyTokens, Float[Tensor, "rows width"]], SettledLoss]


AnyLossFunction = LossFunction | PlannedLoss


def ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return exp of the log-ratio cut to +-20; beyond that it is constant and has no gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def bind_ratio_loss(function: Callable[..., TokenLoss]) -> Callable[[ConfigSection], LossFunction]:
    """Return the binding of a loss of each token's log-ratio and advantage; see `bind_knobs`."""

    def bind(section: ConfigSection) -> LossFunction:
        loss = bind_knobs(function)(section)
        return lambda tokens: loss(tokens.log_ratio, tokens.advantages)

    return bind
