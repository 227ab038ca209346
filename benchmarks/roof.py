"""What the matrix products of a model cost on this machine, and nothing else: the roof of a step.

The weights are as large as the model's and lie in memory as they do in a step: every product reads
a matrix that the processor's caches no longer hold. Each is computed by the faster of torch's two
kernels at its size, in the model's type. Queries, keys and values are one product, and so are gate
and up.
"""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear as multiply
from transformers import PreTrainedModel

from agentrl.engine.decoder import DecodeSegment
from agentrl.engine.linear import Linear, pack_linear
from agentrl.engine.llama import LlamaDecoder
from agentrl.engine.llama_shape import shape_of

SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320)
"""Row counts that are measured; those between are interpolated."""
REPEATS = 3

StepSizes = Counter[tuple[int, int]]
"""How many steps had so many rows, of which so many were followed by the output head."""


@contextmanager
def step_sizes() -> Generator[StepSizes]:
    """Count the steps of the local engine's decoders by size."""
    sizes: StepSizes = Counter()
    forward = LlamaDecoder.forward

    def count(self: LlamaDecoder, segments: Sequence[DecodeSegment]) -> Tensor:
        sizes[sum(len(s.tokens) for s in segments), sum(s.wanted for s in segments)] += 1
        return forward(self, segments)

    LlamaDecoder.forward = count
    try:
        yield sizes
    finally:
        LlamaDecoder.forward = forward


class ProductRoof:
    """CPU seconds of the products of one model, by the number of rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        shape = shape_of(model)
        if shape is None:
            raise ValueError(f"{type(model).__name__} is no model of the fast decoder's")
        hidden, wide = shape.hidden, shape.heads * shape.group * shape.head
        features = (
            (wide + 2 * shape.heads * shape.head, hidden),
            (hidden, wide),
            (2 * shape.inner, hidden),
            (hidden, shape.inner),
        )
        stacks = [(shape.layers, *sizes) for sizes in features]
        self._layers = _measure(stacks, dtype=model.dtype)
        self._head = _measure([(1, shape.vocabulary, hidden)], dtype=model.dtype)

    def step_cpu_s(self, rows: int, wanted: int) -> float:
        """Return the CPU seconds of one step."""
        return _at(self._layers, rows) + _at(self._head, wanted)

    def cpu_s(self, sizes: StepSizes) -> float:
        """Return the CPU seconds of all steps."""
        return sum(count * self.step_cpu_s(*size) for size, count in sizes.items())


def _measure(stacks: Sequence[tuple[int, int, int]], *, dtype: torch.dtype) -> list[float]:
    """Return the CPU seconds at each of `SIZES` of (count, out, in) matrices, one after another."""
    total = [0.0] * len(SIZES)
    for count, out, into in stacks:
        weights = [torch.randn(out, into, dtype=dtype) for _ in range(count)]
        plain = [partial(multiply, weight=weight) for weight in weights]
        packed = [pack_linear(weight) for weight in weights]
        for index, rows in enumerate(SIZES):
            x = torch.randn(rows, into, dtype=dtype)
            total[index] += min(_cpu_s(x, plain), _cpu_s(x, packed))
    return total


def _cpu_s(x: Tensor, layers: Sequence[Linear]) -> float:
    times: list[float] = []
    with torch.inference_mode():
        for _ in range(REPEATS):
            start = time.process_time()
            for layer in layers:
                layer(x)
            times.append(time.process_time() - start)
    return min(times)


def _at(measured: Sequence[float], rows: int) -> float:
    if not rows:
        return 0.0
    if rows > SIZES[-1]:
        return measured[-1] * rows / SIZES[-1]
    return float(np.interp(rows, SIZES, measured))
