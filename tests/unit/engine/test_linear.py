"""Which layers lie in oneDNN's packed layout.

Mutants seen caught: bfloat16 packs from 1024 features, as float32 does; float32 packs always.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.engine.linear import PACK_FROM, make_linear


class PackedCalls(TorchDispatchMode):
    """Counts products of packed weights."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += "_linear_pointwise" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("features", [64, PACK_FROM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_packs_large_layers_and_bfloat16_all(features: int, dtype: torch.dtype) -> None:
    weight = torch.randn(features, 32, dtype=dtype)
    layer = make_linear(weight)
    x = torch.randn(4, 32, dtype=dtype)
    with PackedCalls() as calls:
        y = layer(x)
    if dtype == torch.bfloat16:
        assert calls.count == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    else:
        assert calls.count == (features >= PACK_FROM)
    assert torch.allclose(y.float(), x.float() @ weight.float().t(), rtol=0.02, atol=0.2)
