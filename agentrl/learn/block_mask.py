"""Block masks of FlexAttention, made block by block: no pair of places is ever looked at."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

BLOCK = 128
"""Places of a block; FlexAttention's own default."""


def build_block_mask(ends: Int[Tensor, " places"]) -> BlockMask:
    """Return the mask in which key k is seen by query q if k <= q <= ends[k].

    Every place is seen by the next ones up to its end. So of an earlier block something is seen if
    its last end is not before the first query, and all of it if its first end is not before the
    last query. It takes memory for pairs of blocks, not of places.
    """
    places = len(ends)
    blocks = -(-places // BLOCK)
    # What the last block is filled up with decides nothing: only its own queries look at it.
    last_ends = pad(ends, (0, blocks * BLOCK - places)).view(blocks, BLOCK)
    queries = torch.arange(blocks, device=ends.device)[:, None] * BLOCK
    keys = queries.T
    seen = (keys == queries) | ((keys < queries) & (last_ends.amax(1) >= queries))
    whole = (keys < queries) & (last_ends.amin(1) >= queries + BLOCK - 1)
    partial_count, partial_order = _order_blocks(seen & ~whole)
    whole_count, whole_order = _order_blocks(whole)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_order,
        whole_count,
        whole_order,
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda batch, head, query, key: (key <= query) & (query <= ends[key]),
        seq_lengths=(places, places),
    )


def _order_blocks(
    table: Bool[Tensor, "queries keys"],
) -> tuple[Int[Tensor, "1 1 queries"], Int[Tensor, "1 1 queries keys"]]:
    """Return the number of blocks of each row, and all blocks with those of the row first."""
    order = torch.argsort((~table).byte(), dim=1, stable=True)
    count = table.sum(dim=1, dtype=torch.int32)
    return count[None, None], order.to(torch.int32)[None, None].contiguous()
