"""Attention over the slots' caches, laid out so that a token's numbers depend on its past alone.

On CPU in float32 the same token gets the same bits in any batch, computed one at a time or in a
long prefill. Measured, and kept by the layout:

- a product's rows do not depend on how many there are, if that is a multiple of four;
- the attention kernel works through keys in blocks of 512, and a product over a block is split into
  partial sums in a way that depends on the block's length. Only lengths that give the same bits as
  a full block are used. Which ones those are is a property of the machine's BLAS, so it is probed.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

KEY_BLOCK = 512
"""Keys per block of the CPU kernel."""
KEY_STEP = 64
ROW_STEP = 4
CALL_BYTES = 200_000
"""Key and value bytes whose reading takes as long as one call's overhead (measured)."""


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


@dataclass(frozen=True, slots=True)
class KeyLengths:
    """Lengths to which key sequences are padded."""

    allowed: tuple[int, ...]
    """Within one block, ascending; the last is the whole block."""

    def pad_length(self, keys: int) -> int:
        """Return the smallest allowed length that holds so many keys."""
        blocks, rest = divmod(keys - 1, KEY_BLOCK)
        return blocks * KEY_BLOCK + next(n for n in self.allowed if n > rest)


@functools.cache
def key_lengths(head: int, device_type: str, dtype: torch.dtype) -> KeyLengths:
    """Return the lengths that give the same bits as a full block; elsewhere than on CPU in float32
    nothing is promised, and any multiple of 64 will do."""
    steps = range(KEY_STEP, KEY_BLOCK + 1, KEY_STEP)
    if device_type != "cpu" or dtype != torch.float32:
        return KeyLengths(tuple(steps))
    generator = torch.Generator().manual_seed(0)
    shape = (1, 4, KEY_BLOCK, head)
    query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
    query = query[:, :, :ROW_STEP]

    def attend(keys: int, length: int) -> Tensor:
        mask = torch.zeros(1, 1, ROW_STEP, length)
        mask[..., keys:] = -torch.inf
        return scaled_dot_product_attention(
            query, key[:, :, :length], value[:, :, :length], attn_mask=mask
        )

    return KeyLengths(tuple(n for n in steps if attend(n, n).equal(attend(n, KEY_BLOCK))))


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Query rows that one attention call answers: one row of each of several neighbouring slots, or
    several rows of one slot."""

    row: int
    rows: int
    slot: int
    slots: int
    keys: int
    """Padded."""


def decode_spans(
    slots: Sequence[int], lengths: Sequence[int], key_bytes: int, padding: KeyLengths
) -> list[AttentionSpan]:
    """Group one-token rows, ascending in slot, into calls.

    Neighbours share a call unless the shorter ones would read more padding than a call costs.
    `lengths` counts each row's keys, its own included.
    """
    spans: list[AttentionSpan] = []
    waste = CALL_BYTES // key_bytes
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        keys = padding.pad_length(length)
        if spans:
            last = spans[-1]
            longest = max(last.keys, keys)
            padded = (longest - last.keys) * last.slots + (longest - keys)
            if last.slot + last.slots == slot and padded <= waste:
                count = last.slots + 1
                spans[-1] = AttentionSpan(last.row, count, last.slot, count, longest)
                continue
        spans.append(AttentionSpan(row, 1, slot, 1, keys))
    return spans


def prefill_spans(
    row: int, slot: int, start: int, count: int, padding: KeyLengths
) -> list[AttentionSpan]:
    """Cut consecutive rows of one slot where the padded key length would grow."""
    spans: list[AttentionSpan] = []
    at, end = start, start + count
    while at < end:
        until = min(round_up(at + 1, KEY_STEP), end)
        spans.append(
            AttentionSpan(row + at - start, until - at, slot, 1, padding.pad_length(until))
        )
        at = until
    return spans


class CausalMasks:
    """Rows of a causal mask, each a window of one tensor: zeros, then -inf."""

    def __init__(self, context: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self._context = context
        self._line = torch.zeros(2 * context, device=device, dtype=dtype)
        self._line[context:] = -torch.inf

    def rows(self, positions: Tensor, keys: int) -> Tensor:
        """Return (positions, keys): 0 up to and including each position, -inf after it."""
        windows = self._line.as_strided((self._context, keys), (1, 1))
        return windows.index_select(0, self._context - 1 - positions)
