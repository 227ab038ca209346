"""The policy that the clip is anchored to. The slot's contract."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AnchorTokens:
    """Inputs of a proximal policy: one row per sequence, nothing with gradient."""

    current: Float[Tensor, "rows width"]
    """Log-probs of the policy that is being optimised."""
    start: Float[Tensor, "rows width"]
    """Log-probs of the weights at batch start, or of those the method had scored instead."""
    behaviour: Float[Tensor, "rows width"]
    """Log-probs of the policy that sampled; `start` where the engine gave no number."""
    mask: Bool[Tensor, "rows width"]
    ages: Int[Tensor, "rows width"]
    """Versions by which the sampling policy is older than the trainer's weights."""


ProximalFunction = Callable[[AnchorTokens], Float[Tensor, "rows width"]]
"""The proximal slot: log-probs of the anchor, read on the mask only."""
