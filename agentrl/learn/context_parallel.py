"""Context parallelism: the places of one line divided between ranks, as in DeepSpeed-Ulysses.

Every rank computes its own places of each layer. For attention alone the ranks exchange places for
heads: each then sees the whole line, and so the same masks as without it, for its share of the
heads. Log-probs are gathered at the end, so that losses are computed on whole sequences.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from transformers import PretrainedConfig

from agentrl.config.learning.conflicts import find_head_fault
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class ContextGroup:
    """The ranks that divide each line between them, seen from one of them.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv 2309.14509.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    def gather_places(
        self, states: Float[Tensor, "1 heads own width"]
    ) -> Float[Tensor, "1 own_heads places width"]:
        """Return all places of this rank's heads, of all heads at its own places. A collective."""
        _, heads, places, width = states.shape
        parts = states.reshape(self.size, heads // self.size, places, width)
        received = _exchange(parts, self.group)
        return received.transpose(0, 1).reshape(1, heads // self.size, self.size * places, width)

    def scatter_places(
        self, states: Float[Tensor, "1 places own_heads width"]
    ) -> Float[Tensor, "1 own heads width"]:
        """Return all heads at this rank's places, of its heads at all places. A collective."""
        _, places, heads, width = states.shape
        parts = states.reshape(self.size, places // self.size, heads, width)
        received = _exchange(parts, self.group)
        return received.transpose(0, 1).reshape(1, places // self.size, self.size * heads, width)

    def select_heads(self, values: Float[Tensor, " heads"]) -> Float[Tensor, " own_heads"]:
        """Return this rank's share of numbers that each head has one of."""
        return values.chunk(self.size)[self.rank]


@dataclass(frozen=True, slots=True, eq=False)
class ContextSplit:
    """This rank's part of a line, and of the predictions that are asked of the line."""

    ranks: ContextGroup
    places: slice
    bounds: tuple[int, ...]
    """Index of the first prediction of each rank, and the number of all."""

    @classmethod
    def from_predictions(
        cls, ranks: ContextGroup, predictions: Int[ndarray, " chosen"], *, places: int
    ) -> "ContextSplit":
        """Return the split of a line of `places` with its predictions in rising order."""
        share = places // ranks.size
        bounds = np.searchsorted(predictions, np.arange(ranks.size + 1) * share)
        first = ranks.rank * share
        return cls(ranks, slice(first, first + share), tuple(bounds.tolist()))

    @property
    def predictions(self) -> slice:
        """Return which predictions are made from this rank's places."""
        return slice(self.bounds[self.ranks.rank], self.bounds[self.ranks.rank + 1])

    def gather_predictions(
        self, values: Float[Tensor, " _own_chosen"]
    ) -> Float[Tensor, " _chosen"]:
        """Return the numbers of all predictions, of this rank's own. A collective.

        In the backward pass each rank takes the gradient of its own: all compute the same loss.
        """
        return _gather(values, self.bounds, self.ranks)


class _Exchange(torch.autograd.Function):
    """Part i of the first dimension goes to rank i; back come the parts that were meant for us."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        returned = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(returned, grad.contiguous(), group=ctx.group)
        return returned, None


class _Gather(torch.autograd.Function):
    """Values of all ranks, one rank after the other."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, bounds: tuple[int, ...], ranks: ContextGroup) -> Tensor:
        counts = [stop - start for start, stop in pairwise(bounds)]
        padded = pad(own, (0, max(counts) - len(own)))
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=ranks.group)
        ctx.own = slice(bounds[ranks.rank], bounds[ranks.rank + 1])
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        return grad[ctx.own], None, None


_exchange: Any = _Exchange.apply
_gather: Any = _Gather.apply


def check_heads(config: PretrainedConfig, ranks: int) -> None:
    """Raise `ConfigError` where so many ranks cannot divide the heads of a model."""
    text = config.get_text_config()
    for layer in getattr(text, "per_layer_config", None) or (text,):
        heads = layer.num_attention_heads
        kv_heads = getattr(layer, "num_key_value_heads", None) or heads
        if fault := find_head_fault(ranks, heads=heads, kv_heads=kv_heads):
            raise ConfigError(fault)
