"""Which layers lie in oneDNN's packed layout.

Mutants seen caught: bfloat16 packs from 1024 features, as float32 does; float32 packs always, by
features alone, by elements alone.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.engine.linear import PACK_ELEMENTS, PACK_FEATURES, make_linear


class PackedCalls(TorchDispatchMode):
    """Counts products of packed weights."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += "_linear_pointwise" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("features", "inputs", "is_large"),
    [
        (64, 32, False),
        (PACK_FEATURES - 1, 32, False),
        (PACK_FEATURES, 32, True),
        (64, PACK_ELEMENTS // 64 - 1, False),
        (64, PACK_ELEMENTS // 64, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_packs_large_layers_and_bfloat16_all(
    features: int, inputs: int, is_large: bool, dtype: torch.dtype
) -> None:
    weight = torch.randn(features, inputs, dtype=dtype) / inputs**0.5
    layer = make_linear(weight)
    x = torch.randn(4, inputs, dtype=dtype)
    with PackedCalls() as calls:
        y = layer(x)
    if dtype == torch.bfloat16:
        assert calls.count == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    else:
        assert calls.count == is_large
    assert torch.allclose(y.float(), x.float() @ weight.float().t(), rtol=0.02, atol=0.2)


@pytest.mark.parametrize(("features", "inputs"), [(576, 576), (960, 576), (576, 1536), (1024, 64)])
def test_a_row_is_the_same_to_the_last_bit_among_any_multiple_of_four(
    features: int, inputs: int
) -> None:
    torch.manual_seed(0)
    layer = make_linear(torch.randn(features, inputs))
    x = torch.randn(64, inputs)
    whole = layer(x)
    for rows in range(4, 64, 4):
        assert torch.equal(layer(x[:rows]), whole[:rows])
