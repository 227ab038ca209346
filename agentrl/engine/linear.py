"""Linear layers that do one thing fast: multiply few rows by a fixed matrix."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

Linear = Callable[[Tensor], Tensor]
"""(rows, in) to (rows, out)."""

PACK_FEATURES = 1024
PACK_ELEMENTS = 2**18
"""Output features, or elements, from which oneDNN's packed layout wins on CPU in float32 (measured:
1.2x to 2.5x with so many features, 1.1x to 2x with so many elements, most where rows are few; a
loss below both, where its call overhead dominates). In bfloat16 it wins at any size: 1.0x to 1.4x
with 64 to 384 features, 1.0x to 2.7x with 512 and more."""
ROWS_HINT = 64
"""The row count the packed layout is laid out for; measured no worse than the true one."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return the layer as a function. The weight must not change afterwards.

    On CPU in float32 a row of the result is the same to the last bit for any number of rows that
    is a multiple of four; with one to three rows other kernels are chosen.
    """
    if _packs(weight):
        return pack_linear(weight, bias)

    def apply_plain(x: Tensor) -> Tensor:
        return torch_linear(x, weight, bias)

    return apply_plain


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return a layer whose weight, on the CPU, lies in oneDNN's packed layout.

    The weight is float32, or bfloat16 where oneDNN has kernels for it.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    pointwise = torch.ops.mkldnn._linear_pointwise

    def apply_packed(x: Tensor) -> Tensor:
        return pointwise(x, packed, bias, "none", [], "")

    return apply_packed


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu":
        return False
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    is_large = weight.shape[0] >= PACK_FEATURES or weight.numel() >= PACK_ELEMENTS
    return weight.dtype == torch.float32 and is_large
