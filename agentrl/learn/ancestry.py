"""Ancestry in a line of sequences that share prefixes, as masks and as spans of attention calls."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from agentrl.learn.block_mask import build_block_mask


@dataclass(frozen=True, slots=True)
class AttentionSpanPair:
    """Queries that all see all of these keys; `stop` is the first place after."""

    query_start: int
    query_stop: int
    key_start: int
    key_stop: int


@dataclass(frozen=True, slots=True, eq=False)
class AncestorMask:
    """A place sees itself and its ancestors: key k is seen by query q if k <= q <= ends[k].

    Spans are numbers of the host, so that no pass waits for a device to tell them.
    `chains` and `across` say the same in spans. A chain is a run of places each of which is the
    parent of the next; it is causal attention. Whatever comes after a chain and lies below one of
    its places sees that place without a mask, and so do all others up to where its subtree ends.
    """

    ends: Int[Tensor, " places"]
    """The last place that may look at each place, from within its subtree."""
    positions: Int[Tensor, " places"]
    chains: tuple[tuple[int, int], ...]
    across: tuple[AttentionSpanPair, ...]
    longest: int
    _masks: dict[int, Bool[Tensor, "places places"]] = field(default_factory=dict[int, Tensor])
    _blocks: list[BlockMask] = field(default_factory=list[BlockMask])

    @classmethod
    def from_positions(
        cls,
        positions: Int[ndarray, " places"],
        ends: Int[ndarray, " places"],
        *,
        device: torch.device,
    ) -> "AncestorMask":
        """Return the ancestry of a line: the depth of each place, and the last place below it."""
        # A chain breaks where the next place is no child; a node, where their subtrees differ.
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        chains = list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(positions)], strict=True))
        across: list[AttentionSpanPair] = []
        for start, stop in chains:
            chain_ends = ends[start:stop]
            nodes = [0, *(np.flatnonzero(np.diff(chain_ends)) + 1).tolist(), stop - start]
            for first, after in pairwise(nodes):
                if chain_ends[first] >= stop:
                    across.append(
                        AttentionSpanPair(
                            stop, int(chain_ends[first]) + 1, start + first, start + after
                        )
                    )
        return cls(
            ends=torch.from_numpy(ends).to(device),
            positions=torch.from_numpy(positions).to(device),
            chains=tuple(chains),
            across=tuple(across),
            longest=int(positions.max(initial=-1)) + 1,
        )

    def mask(self, window: int | None = None) -> Bool[Tensor, "places places"]:
        """Return a mask of keys (columns) by query (row), at most `window` tokens back."""
        reach = self.longest if window is None else min(window, self.longest)
        if reach not in self._masks:
            places = torch.arange(len(self.ends), device=self.ends.device)
            is_ancestor = (places <= places[:, None]) & (places[:, None] <= self.ends)
            self._masks[reach] = is_ancestor & (self.positions[:, None] - self.positions < reach)
        return self._masks[reach]

    def block_mask(self) -> BlockMask:
        """Return the same for FlexAttention."""
        if not self._blocks:
            self._blocks.append(build_block_mask(self.ends))
        return self._blocks[0]
