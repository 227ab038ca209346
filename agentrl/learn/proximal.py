"""The policy that the clip is anchored to: the slot's contract, and that of other weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentrl.learn.method import Need
from agentrl.learn.micro_batch import CreditedSample


@dataclass(frozen=True, slots=True, eq=False)
class AnchorTokens:
    """Inputs of a proximal policy: one row per sequence, nothing with gradient."""

    current: Float[Tensor, "rows width"]
    start: Float[Tensor, "rows width"]
    """Log-probs of the weights at batch start, or of those the method had scored instead."""
    behaviour: Float[Tensor, "rows width"]
    """Log-probs of the policy that sampled; `start` where the engine gave no number."""
    mask: Bool[Tensor, "rows width"]
    ages: Int[Tensor, "rows width"]
    """Versions by which the sampling policy is older than the trainer's weights."""


ProximalFunction = Callable[[AnchorTokens], Float[Tensor, "rows width"]]
"""The proximal slot: log-probs of the anchor, read on the mask only."""

ELSEWHERE: frozenset[Need] = frozenset({"averaged logprobs", "past logprobs"})
"""Needs that are met only by a proximal policy with weights of its own."""


class ProximalWeights:
    """Weights that are kept beside the trainer's, to score samples with. This one keeps none.

    A batch calls `score_batch`, then `score_update` and `on_update` for every optimiser step, then
    `on_step`.
    """

    name = ""
    """Name of its file in a checkpoint."""

    def score_batch(self, rows: Sequence[CreditedSample], *, version: int) -> list[CreditedSample]:
        """Return the rows of a batch, with proximal log-probs if they hold for all of it."""
        return list(rows)

    def score_update(self, rows: Sequence[CreditedSample]) -> list[CreditedSample]:
        """Return the rows of an optimiser step, with proximal log-probs if each has its own."""
        return list(rows)

    def on_update(self) -> None:
        """Take note that an optimiser step has moved the weights."""

    def on_step(self, *, active_fraction: float) -> Mapping[str, float]:
        """Take note that a batch is done, in which so many tokens were neither clipped nor masked;
        return the metrics there are."""
        return {}

    def forget(self, *, before: int) -> None:
        """Take note that no token of a version before this one will come."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint, an empty dict if there are none."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; without any, begin with the model's weights."""
