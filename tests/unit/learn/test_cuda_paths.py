"""Paths that only CUDA takes, without it: fake tensors, compiled graphs, a fake process group.

Mutants seen caught: FlexAttention for short lines; a mask function that is another one each time,
and so is compiled; a dense mask where there is FlexAttention; layers that are collected with the
model.
"""

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations import flex_attention as transformers_flex

from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.attention import attend, kernel_for
from agentrl.learn.sequence_layout import MaskedTokens, ModelInputs
from agentrl.learn.sharded.shard import shard
from agentrl.learn.token_logprobs import score
from tests.support.learning import CPU, VOCABULARY, model_of

LENGTHS = (37, 150, 151, 300, 90, 128, 513, 64, 255, 420)
MOST_GRAPHS = 2
"""One for the first length, and one for all others."""


def sequences_of(length: int, seed: int = 0) -> list[MaskedTokens]:
    """Return sequences with a common beginning."""
    random = np.random.default_rng(seed)
    start = random.integers(2, VOCABULARY, 20)
    rows = [np.concatenate([start, random.integers(2, VOCABULARY, length)]) for _ in range(3)]
    return [MaskedTokens(row, np.arange(len(row)) > 19) for row in rows]


def inputs_of(layout: str, length: int) -> ModelInputs:
    chosen: Any = LAYOUTS
    return chosen[layout](100_000).tokens(sequences_of(length), device=CPU)


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Compile FlexAttention as transformers does, by a back-end that needs no compiler."""
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, backend="eager")

    def call(*args: Any, training: bool = False, **options: Any) -> Any:
        return compiled(*args, **options)

    monkeypatch.setattr(transformers_flex, "compile_friendly_flex_attention", call)
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("eager_flex")
@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_flex_attention_is_compiled_for_all_lengths_at_once(layout: str) -> None:
    """A graph for each length would be compiled until torch gives up, and attention becomes dense:
    gigabytes of scores where there were none."""
    module: Any = torch.nn.Module().eval()
    module.num_key_value_groups = 2
    counters.clear()
    for length in LENGTHS:
        tokens = inputs_of(layout, length)
        ancestry = tokens.ancestry
        assert ancestry is not None
        places = tokens.inputs.shape[1]
        query, key, value = (torch.randn(1, heads, places, 16) for heads in (4, 2, 2))
        given: dict[str, Any] = {"attention_mask": None, "ancestry": ancestry, "scaling": 0.25}
        found, _ = attend(module, query, key, value, **given, kernel="flex")
        expected, _ = attend(module, query, key, value, **given, kernel="dense")
        assert torch.allclose(found, expected, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= MOST_GRAPHS
    assert not counters["recompile_limit"]


@pytest.mark.parametrize(
    ("device", "places", "windowed", "kernel"),
    [
        ("cuda", 1024, False, "flex"),
        ("cuda", 1023, False, "dense"),
        ("cuda", 4096, True, "dense"),
        ("cpu", 4096, False, "split"),
    ],
)
def test_the_kernel_of_a_device(device: str, places: int, windowed: bool, kernel: str) -> None:
    with FakeTensorMode():
        query = torch.empty(1, 2, places, 16, device=device)
    assert kernel_for(query, query, windowed=windowed) == kernel


def large_model() -> PreTrainedModel:
    """Return a model of two billion parameters without any memory."""
    with torch.device("meta"):
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=151_936,
                hidden_size=2048,
                intermediate_size=6144,
                num_hidden_layers=28,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=128,
            )
        ).eval()


@pytest.fixture
def mesh() -> Generator[DeviceMesh]:
    """Return the mesh of eight ranks of which only this one is there."""
    dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
    yield DeviceMesh("cpu", torch.arange(8))
    dist.destroy_process_group()


def test_a_large_model_is_in_shards_of_an_eighth(mesh: DeviceMesh) -> None:
    model = large_model()
    whole = sum(parameter.numel() for parameter in model.parameters())
    shard(model, mesh, precision="bfloat16")
    here = sum(parameter.to_local().numel() for parameter in model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    assert whole > 1.5e9
    assert here == pytest.approx(whole / 8, rel=0.001)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(isinstance(module, FSDPModule) for module in model.modules()) == 28 + 1


class CollectiveCount(TorchDispatchMode):
    """Counts collectives by name, and bytes that a forward pass holds at once."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "c10d" in name and ("allgather" in name or "reduce_scatter" in name):
            kind = "gather" if "allgather" in name else "scatter"
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return func(*args, **(kwargs or {}))


def test_each_layer_is_collected_once_for_each_direction(mesh: DeviceMesh) -> None:
    """Two layers and the rest: gathered for the forward and for the backward pass, but for the
    model's own weights, which stay in between; gradients are scattered once."""
    model = model_of()
    shard(model, mesh, precision="float32")
    tokens = inputs_of("padded", 12)
    with CollectiveCount() as count:
        scores = score(model, tokens, temperature=1.0, head_at_positions=True)
        forward = dict(count.counts)
        scores.logprobs.sum().backward()
    layers = len(model.model.layers)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    assert forward == {"gather": layers + 1}
    assert count.counts["scatter"] == layers + 1
    assert count.counts["gather"] <= 2 * (layers + 1)
    assert scores.logprobs.shape == tokens.mask.shape
