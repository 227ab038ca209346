"""Weights as a stream of safetensors: what is written is what the format's own reader reads.

Mutants seen caught: tied weights written twice; strided tensors written as they lie in memory;
the narrowest tensor first.
"""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.weights import read_weights
from agentrl.weight_sync.safetensors import (
    KINDS,
    SafetensorsLayout,
    TensorShape,
    drop_aliases,
    write_safetensors,
)


def written(weights: dict[str, Tensor]) -> bytes:
    file = io.BytesIO()
    assert write_safetensors(file, weights) == len(file.getvalue())
    return file.getvalue()


kinds_and_shapes = st.lists(
    st.tuples(st.sampled_from(list(KINDS)), st.lists(st.integers(0, 3), max_size=3)), max_size=6
)


@given(parts=kinds_and_shapes, seed=st.integers(0, 99))
def test_what_is_written_is_read(parts: list[tuple[torch.dtype, list[int]]], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    weights = {
        f"layer.{i}": torch.randint(0, 2, shape, generator=draw).to(kind)
        for i, (kind, shape) in enumerate(parts)
    }
    found = load(written(weights))
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


@given(parts=kinds_and_shapes)
def test_each_begins_at_a_multiple_of_its_width(parts: list[tuple[torch.dtype, list[int]]]) -> None:
    tensors = {f"{i}": TensorShape(tuple(shape), kind) for i, (kind, shape) in enumerate(parts)}
    layout = SafetensorsLayout.from_shapes(tensors)
    for name, tensor in tensors.items():
        assert layout.starts[name] % tensor.dtype.itemsize == 0


def test_what_is_no_row_after_the_other_is_written_so() -> None:
    square = torch.arange(6.0).reshape(2, 3)
    found = load(written({"turned": square.T, "part": square[:, 1]}))
    assert torch.equal(found["turned"], square.T)
    assert torch.equal(found["part"], torch.tensor([1.0, 4.0]))


def test_a_tied_head_is_written_once() -> None:
    table = torch.rand(4, 2)
    both = {"embed": table, "head": table, "other": table.clone(), "none": torch.zeros(0)}
    assert list(drop_aliases(both)) == ["embed", "other", "none"]
    assert load(written(both)).keys() == {"embed", "other", "none"}


def test_a_type_that_no_weight_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'z' has type torch\.complex64"):
        write_safetensors(io.BytesIO(), {"z": torch.zeros(1, dtype=torch.complex64)})


def test_shared_memory_has_it() -> None:
    weights = {"a": torch.rand(3, 2), "b": torch.rand(5).bfloat16()}
    kept = SharedWeights(weights)
    found = read_weights(kept.path)
    assert all(torch.equal(found[name], value) for name, value in weights.items())
