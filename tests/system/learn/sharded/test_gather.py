"""Weights of several ranks, put together in memory that engines read: every bit, and once.

Mutants seen caught: the rows of a rank rounded down; the last part not cut off; types ignored; a
place counted in numbers; copied though in memory; hidden by a proof; written at once or not at all.
"""

import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.weights import read_weights
from agentrl.errors import LearnError
from agentrl.learn.dtensor import gather_tensor
from agentrl.learn.ranks import TrainerRanks
from agentrl.learn.sharded import gather
from agentrl.learn.sharded.mesh import MeshRanks
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.trainer import PolicyTrainer
from agentrl.weight_sync.adapters import AdapterWeights, find_adapters
from agentrl.weight_sync.buckets import SafetensorsBytes
from agentrl.weight_sync.check import CheckedWeights, WeightCheck
from agentrl.weight_sync.shared_memory import SharedMemoryFile, SharedMemoryWeights
from tests.support.learning import trees_of
from tests.support.sharded import World, world
from tests.support.sharded_runs import leading
from tests.system.learn.sharded.test_step import model

Shape = tuple[torch.dtype, list[int], torch.dtype | None, bool]
"""What a weight is, what it is rounded to, and whether it is in shards."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world() as opened:
        yield opened


def made(shapes: list[Shape], seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        f"weight.{i}": torch.randn(shape, generator=draw).to(dtype)
        for i, (dtype, shape, _, _) in enumerate(shapes)
    }


def rounded(shapes: list[Shape], seed: int) -> dict[str, Tensor]:
    """Return what is to come of it on the first rank."""
    found = {
        name: value.to(rounds or value.dtype)
        for (name, value), (_, _, rounds, _) in zip(made(shapes, seed).items(), shapes, strict=True)
    }
    return found | {"tied": found["weight.0"]}


def put_together(
    ranks: MeshRanks, shapes: list[Shape], seed: int, bucket_bytes: int
) -> tuple[dict[str, Tensor], bytes, list[int]]:
    """Return the weights, the file, and how long what was written at once was."""
    mesh: DeviceMesh = ranks._mesh  # pyright: ignore[reportPrivateUsage]
    weights = {
        name: distribute_tensor(value, mesh, [Shard(0)]) if in_shards else value
        for (name, value), (*_, in_shards) in zip(made(shapes, seed).items(), shapes, strict=True)
    }
    types = {f"weight.{i}": each[2] for i, each in enumerate(shapes) if each[2] is not None}
    put, bucket, sizes = SharedMemoryFile.put, gather.BUCKET_BYTES, list[int]()

    def noted(self: SharedMemoryFile, data: Tensor, *, start: int) -> None:
        sizes.append(len(data))
        put(self, data, start=start)

    gather.BUCKET_BYTES, SharedMemoryFile.put = bucket_bytes, noted
    try:
        found = ranks.gather_weights(weights, types, tied={"tied": "weight.0"})
    finally:
        gather.BUCKET_BYTES, SharedMemoryFile.put = bucket, put
    if not isinstance(found, SharedMemoryWeights):
        return dict(found), b"", []
    return dict(found), found.file.path.read_bytes(), sizes[1:]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from(FLOATS),
            st.lists(st.integers(0, 7), min_size=1, max_size=3),
            st.sampled_from([None, *FLOATS]),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    size=st.integers(2, 3),
    bucket_bytes=st.integers(1, 200),
    seed=st.integers(0, 99),
)
@pytest.mark.nightly
def test_every_bit_is_there_and_the_file_is_the_one_that_is_copied_otherwise(
    ranks: World, shapes: list[Shape], size: int, bucket_bytes: int, seed: int
) -> None:
    wanted = rounded(shapes, seed)
    first, *others = ranks.run(put_together, shapes, seed, bucket_bytes, size=size)
    assert others == [({}, b"", [])] * (size - 1)
    found, data, pieces = first
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    del wanted["tied"]  # empty ones are written twice
    assert data == SharedMemoryFile.from_weights(wanted).path.read_bytes()
    if all(in_shards for *_, in_shards in shapes):
        assert max(pieces, default=0) <= max(4, bucket_bytes // size)


def sent(
    ranks: TrainerRanks, policy: PreTrainedModel, changes: Mapping[str, Any], tied: bool
) -> dict[str, Tensor]:
    """Train, then return on the first rank what is read of the file, on others what they keep."""
    section = LearnSection.model_validate({"optimizer": {"learning_rate": 1e-3}, **changes})
    trainer = PolicyTrainer(policy, section, seed=5, ranks=ranks)
    trainer.step(trees_of(3, seed=1))
    wanted = {
        n: gather_tensor(v.detach()).to(trainer._types.get(n, v.dtype))  # pyright: ignore[reportPrivateUsage]
        for n, v in trainer.model.state_dict().items()
    }
    weights = trainer.weights()
    if ranks.rank:
        assert not weights
        return {}
    kept = SharedWeights(weights)
    found = dict(read_weights(kept.path))
    if isinstance(weights, AdapterWeights):
        assert isinstance(weights.base.weights, SharedMemoryWeights)
        assert kept.base is not None
        assert kept.base.path == weights.base.weights.file.path
        wanted = {n.replace(".base_layer.", "."): v for n, v in wanted.items() if "lora_" not in n}
        found = dict(read_weights(kept.base.path))
        assert find_adapters(weights) is weights
    else:
        assert isinstance(weights, SharedMemoryWeights)
        assert kept.path == weights.file.path, "it is not copied"
    assert set(weights) == wanted.keys()
    assert found.keys() == {*wanted} - ({"lm_head.weight"} if tied else set[str]())
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        assert torch.equal(value, wanted[name]), name
    if not isinstance(weights, AdapterWeights):
        assert all(torch.equal(weights[name], value) for name, value in wanted.items())
    return found


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"precision": "bfloat16"}, {"lora": {"rank": 2}}],
    ids=["float32", "bfloat16", "adapters"],
)
def test_a_trainers_weights_are_what_its_ranks_keep(
    ranks: World, changes: Mapping[str, Any], tied: bool
) -> None:
    policy = model(tied=tied)
    if "precision" in changes:
        policy.bfloat16()
    for size in (2, 3):
        found, *_ = ranks.run(sent, policy, changes, tied, size=size)
        dtype = torch.bfloat16 if "precision" in changes else torch.float32
        assert {value.dtype for value in found.values()} == {dtype}


# --- what is done with it -------------------------------------------------------------------------


def in_memory() -> SharedMemoryWeights:
    weights = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.rand(5).bfloat16()}
    layout = gather.SafetensorsLayout.from_shapes(
        {n: gather.TensorShape(tuple(v.shape), v.dtype) for n, v in weights.items()}
    )
    file = SharedMemoryFile()
    file.put(torch.frombuffer(bytearray(layout.header), dtype=torch.uint8), start=0)
    for name, value in weights.items():
        file.put(value.view(torch.uint8).flatten(), start=layout.starts[name])
    return SharedMemoryWeights(file, layout, tied={"c": "a"})


def test_it_stays_while_there_is_anything_of_it_and_goes_with_the_last() -> None:
    weights = in_memory()
    descriptor, a = weights.file.descriptor, weights["a"]
    place = os.stat(descriptor).st_ino

    def held() -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # it is closed meanwhile
                found += os.stat(f"/proc/self/fd/{name}").st_ino == place
        return found

    kept = SharedWeights(CheckedWeights(weights, PROOF))
    assert kept.proof is PROOF
    assert kept.path == weights.file.path
    del weights
    assert read_weights(kept.path).keys() == {"a", "b"}
    del kept
    assert torch.equal(a, torch.arange(12.0).reshape(3, 4))
    assert held()
    del a
    assert not held()


PROOF = WeightCheck(token_ids=(1, 2), logprobs=(-1.0,), max_gap=0.1, deadline_s=1.0)


async def test_a_broadcast_goes_from_it_and_keeps_it_as_the_copy() -> None:
    weights = in_memory()
    row = SafetensorsBytes.from_weights(weights)
    target = torch.empty(row.size_bytes, dtype=torch.uint8)
    row.copy_to(target, start=0)
    assert target.numpy().tobytes() == weights.file.path.read_bytes()
    spreader = WeightBroadcaster(backend="gloo", bucket_bytes=64, deadline_s=60.0)
    copy = await spreader.spread(weights, [])
    assert copy.path == weights.file.path
    await spreader.close()


# --- a rank that is lost --------------------------------------------------------------------------


class Dying(RankCommand):
    """A command that kills its process at the third of its gathers."""

    def run(self, trainer: PolicyTrainer) -> None:
        gathers, calls = dist.gather, list[int]()

        def gather(*args: Any, **kwargs: Any) -> None:
            calls.append(len(calls))
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            gathers(*args, **kwargs)

        dist.gather = gather
        super().run(trainer)


def test_a_rank_that_dies_in_the_middle_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, put = {*memory_files()}, SharedMemoryFile.put
    written: list[int] = []

    def noted(self: SharedMemoryFile, data: Tensor, *, start: int) -> None:
        put(self, data, start=start)
        written.append(start)

    monkeypatch.setattr(SharedMemoryFile, "put", noted)
    with leading(tmp_path) as (trainer, _):
        link: Any = trainer._link  # pyright: ignore[reportPrivateUsage]
        tell = link.tell

        def tell_it_to_die(command: RankCommand) -> None:
            tell(Dying(command.name))

        monkeypatch.setattr(link, "tell", tell_it_to_die)
        with pytest.raises(LearnError, match=r"rank 1 of the trainer, process \d+, .*SIGKILL"):
            trainer.weights()
    assert len(written) == 1 + 2 * 2, "the header, and two tensors of two parts"
    assert {*memory_files()} <= before


@pytest.mark.nightly
def test_one_that_hangs_is_waited_for_as_long_as_the_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"learn.devices.step_s": 15.0}
    with leading(tmp_path, **changes) as (trainer, pids):
        os.kill(pids[0], signal.SIGSTOP)
        try:
            with pytest.raises(RuntimeError, match=r"(?i)timed? ?out"):
                trainer.weights()
        finally:
            os.kill(pids[0], signal.SIGKILL)


def memory_files() -> list[int]:
    """Return which memory files this process has."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        link = Path(f"/proc/self/fd/{name}")
        with suppress(FileNotFoundError):  # it is closed meanwhile
            if "agentrl-weights" in str(link.readlink()):
                found.append(link.stat().st_ino)
    return found


def test_memory_that_there_is_not_is_an_error_and_kills_nobody() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = SharedMemoryFile()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.put(torch.ones(5000, dtype=torch.uint8), start=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.path.read_bytes() == b"\1" * 4096, "what was written at once was less"
