"""Adapters alone on their way to engines: what is merged, what is sent, and what is remembered.

Mutants seen caught: the scale left out; any base taken for the one that is named; which way round
a weight is stored is not told; adapters under a proof taken for whole weights; the base sent each
time.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.check import RULES
from agentrl.config.learn import LearnSection, LoraSection
from agentrl.config.run import ProbeSection, RunConfig
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import (
    AddressEngine,
    EngineReplicas,
    EngineServer,
    ProcessEngine,
    connect,
)
from agentrl.engine.remote import address as address_module
from agentrl.engine.remote import client as client_module
from agentrl.engine.remote.client import RemoteEngine, to_safetensors
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.spec import EngineSpec
from agentrl.engine.vllm.launch import VllmServerSettings
from agentrl.engine.weights import read_weights
from agentrl.errors import ConfigError
from agentrl.learn.lora import adapt, find_adapted
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.weight_check import add_proof
from agentrl.policy import GenerateRequest, PolicyEngine
from agentrl.run.build_engine import build_engine_spec
from agentrl.weight_sync.adapters import (
    MARK,
    AdapterWeights,
    BaseWeights,
    LoraAdapter,
    find_adapters,
    pack_adapters,
    unpack_adapters,
)
from agentrl.weight_sync.safetensors import drop_aliases, header_of
from tests.support.engine_models import recipe_in, tiny

KEY = b"a key that nobody guesses"
CONTEXT_TOKENS = 128
DEADLINE_S = 200.0
LAST_PARTS = ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "embed_tokens", "lm_head")


def moved(model: PreTrainedModel, *, seed: int, size: float = 0.05) -> None:
    """Let the adapters of a model be as after an update."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(size * torch.randn_like(parameter))


def trainer_of(
    model: PreTrainedModel, *, seed: int | None = 1, precision: str = "float32", **lora: Any
) -> PolicyTrainer:
    """Return a trainer with adapters, which have been moved unless there is no seed."""
    section = LearnSection.model_validate(
        {"lora": {"rank": 4, "alpha": 6.0, **lora}, "precision": precision}
    )
    trainer = PolicyTrainer(model, section, seed=0)
    if seed is not None:
        moved(trainer.model, seed=seed)
    return trainer


def by_peft(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return merged weights as peft makes them, layer by layer, in float32."""
    found = {
        name.replace(".base_layer.", "."): value.detach().clone()
        for name, value in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in find_adapted(model):
        with torch.no_grad():
            whole = layer.base_layer.weight.float() + layer.get_delta_weight("default")
        found[f"{name}.weight"] = whole
    return found


def over_there(
    weights: Mapping[str, Tensor], base: BaseWeights, way: str, folder: Path
) -> AdapterWeights:
    """Return weights as they come out at the other end, over a copy of the base."""
    ours = find_adapters(weights)
    assert ours is not None
    if way == "shared":
        copy = SharedWeights(weights)
        return unpack_adapters(read_weights(copy.path), header_of(copy.path), base)
    data = to_safetensors(*pack_adapters(ours))
    if way == "file":
        file = folder / "adapters.safetensors"
        file.write_bytes(data)
        return unpack_adapters(read_weights(file), header_of(file), base)
    from safetensors.torch import load

    return unpack_adapters(load(data), header_of(data), base)


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Fail unless all is equal, to the last bit and in type."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


# --- what is merged -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    rank=st.integers(1, 9),
    alpha=st.floats(0.1, 64.0),
    targets=st.one_of(
        st.just("all-linear"),
        st.lists(st.sampled_from(LAST_PARTS), min_size=1, unique=True).map(tuple),
    ),
    precision=st.sampled_from(["float32", "bfloat16"]),
    way=st.sampled_from(["shared", "file", "bytes"]),
    updates=st.integers(1, 4),
)
def test_what_an_engine_merges_is_what_the_trainer_merges_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory,
    rank: int,
    alpha: float,
    targets: str | tuple[str, ...],
    precision: str,
    way: str,
    updates: int,
) -> None:
    model = tiny("qwen2")
    trainer = trainer_of(
        model, seed=None, precision=precision, rank=rank, alpha=alpha, targets=targets
    )
    first = parts_of(trainer)
    assert {str(v.dtype) for v in first.base.weights.values()} == {f"torch.{precision}"}
    base = BaseWeights({n: v.clone() for n, v in first.base.weights.items()}, id=first.base.id)
    untouched = {name: value.clone() for name, value in base.weights.items()}
    for seed in range(updates):
        moved(model, seed=seed)
        there = over_there(trainer.weights(), base, way, tmp_path_factory.getbasetemp())
        assert_same(there, trainer.weights())
        assert_same(there, by_peft(model))
        assert_same(there.to_device(torch.device("cpu")), by_peft(model))
    # Many updates are no further from the base than one.
    assert_same(base.weights, untouched)


def test_weights_that_are_stored_the_other_way_round_are_merged_so(tmp_path: Path) -> None:
    model = tiny("gpt2")
    trainer = trainer_of(model)
    weights = find_adapters(trainer.weights())
    assert weights is not None
    assert all(one.transposed for one in weights.adapters.values())
    assert_same(over_there(weights, weights.base, "bytes", tmp_path), by_peft(model))


def test_an_adapter_adds_its_scale_times_b_times_a() -> None:
    adapter = LoraAdapter(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0], [20.0]]), 0.5)
    base = BaseWeights({"w": torch.ones(2, 3), "v": torch.zeros(3, 2), "other": torch.ones(1)})
    weights = AdapterWeights(base, {"w": adapter, "v": replace(adapter, transposed=True)})
    assert weights["w"].tolist() == [[6.0, 11.0, 16.0], [11.0, 21.0, 31.0]]
    assert weights["v"].tolist() == [[5.0, 10.0], [10.0, 20.0], [15.0, 30.0]]
    assert weights["other"] is base.weights["other"]
    assert (list(weights), len(weights), "w" in weights, "x" in weights) == (
        ["w", "v", "other"],
        3,
        True,
        False,
    )


def test_a_step_later_weights_are_still_asked_for_as_they_are_then() -> None:
    """An average that is judged is put into the model for a moment, and must stay what it is."""
    section = LearnSection.model_validate({"lora": {"rank": 2}, "ema": {"decay": 0.5}})
    trainer = PolicyTrainer(tiny("qwen3"), section, seed=0)
    judged = trainer.evaluation_weights()
    before = {name: value.clone() for name, value in judged.items()}
    trained = trainer.weights()
    moved(trainer.model, seed=3)
    assert_same(judged, before)
    assert any(not torch.equal(trained[name], value) for name, value in before.items())


ODD = LoraAdapter(torch.zeros(2, 3), torch.zeros(4, 2), 1.0)


@pytest.mark.parametrize(
    ("name", "adapter", "words"),
    [
        ("nowhere", ODD, "for 'nowhere', but the base model has no such weight"),
        ("w", replace(ODD, transposed=True), r"A \(2, 3\) and B \(4, 2\), but the weight is \(4"),
        ("w", replace(ODD, b=torch.zeros(5, 2)), r"B \(5, 2\)"),
        ("w", replace(ODD, a=torch.zeros(1, 3)), r"A \(1, 3\)"),
    ],
)
def test_adapters_of_another_model_are_refused(name: str, adapter: LoraAdapter, words: str) -> None:
    base = BaseWeights({"w": torch.zeros(4, 3)})
    assert AdapterWeights(base, {"w": ODD}).adapters
    with pytest.raises(ValueError, match=words):
        AdapterWeights(base, {name: adapter})


def test_what_nobody_packed_is_refused() -> None:
    base = BaseWeights({"w": torch.zeros(4, 3)})
    tensors, said = pack_adapters(AdapterWeights(base, {"w": ODD}))
    assert unpack_adapters(tensors, said, base)["w"].shape == (4, 3)
    for broken in ("{", "[]", '{"base": "x"}', '{"base": "x", "of": {"w": 3}}'):
        with pytest.raises(ValueError, match="not valid"):
            unpack_adapters(tensors, {MARK: broken}, base)
    with pytest.raises(ValueError, match=r"not valid.*w\.B"):
        unpack_adapters({"w.A": ODD.a}, said, base)
    for other in (None, BaseWeights(base.weights)):
        with pytest.raises(ValueError, match="send the base first"):
            unpack_adapters(tensors, said, other)


def test_an_adapter_of_what_is_no_matrix_is_refused() -> None:
    model = tiny("qwen3")
    model.add_module("eye", torch.nn.Conv2d(3, 4, 2))
    with pytest.raises(ConfigError, match=r"adapts eye, a Conv2d .*\(4, 3, 2, 2\)"):
        adapt(model, LoraSection(targets=("eye",)), seed=0)


def test_headers_are_read_and_what_has_none_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x"
    for content in (b"", b"\xff" * 40, to_safetensors({"w": torch.zeros(2)})):
        file.write_bytes(content)
        assert header_of(file) == header_of(content) == {}
    assert header_of(tmp_path) == header_of(tmp_path / "none") == {}
    file.write_bytes(to_safetensors({"w": torch.zeros(2)}, {"a": "b"}))
    assert header_of(file) == header_of(file.read_bytes()) == {"a": "b"}


# --- what is sent ---------------------------------------------------------------------------------


class Keeper(ScriptedEngine):
    """An engine that keeps what it was given last."""

    def __init__(self) -> None:
        super().__init__(lambda request: (5,) * 4)
        self.held: dict[str, Tensor] = {}

    async def load(self, weights: Any, version: int) -> None:
        self.held = dict(read_weights(weights))
        await super().load(weights, version)


@asynccontextmanager
async def served(engine: PolicyEngine, port: int = 0) -> AsyncGenerator[int]:
    async with EngineServer(engine, key=KEY) as server:
        yield await server.listen("127.0.0.1", port)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is sent over sockets from now on: for which call, and how many bytes."""
    calls: list[tuple[str, int]] = []
    send = RemoteEngine._send  # pyright: ignore[reportPrivateUsage]

    async def counted(
        self: RemoteEngine, read: Any, size: int, call: str, head: dict[str, Any]
    ) -> None:
        calls.append((call, size))
        await send(self, read, size, call, head)

    monkeypatch.setattr(RemoteEngine, "_send", counted)
    return calls


def bytes_of(weights: Mapping[str, Tensor]) -> int:
    """Return the least that weights take; a tied head counts once."""
    return sum(v.numel() * v.element_size() for v in drop_aliases(weights).values())


def parts_of(trainer: PolicyTrainer) -> AdapterWeights:
    found = find_adapters(trainer.weights())
    assert found is not None
    return found


async def test_the_base_goes_over_once_and_then_adapters_alone(
    sent: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PIECE_BYTES", 50_000)  # a base comes in several
    trainer, engine = trainer_of(tiny("qwen3"), rank=2), Keeper()
    async with asyncio.timeout(DEADLINE_S), served(engine) as port:
        remote = await connect(f"127.0.0.1:{port}", key=KEY)
        async with remote:
            for version in range(1, 4):
                moved(trainer.model, seed=version)
                await remote.load(trainer.weights(), version)
                assert_same(engine.held, without_tied(by_peft(trainer.model)))
        assert [call for call, _ in sent] == ["lay", "load", "load", "load"]
        weights = parts_of(trainer)
        assert 0 <= sent[0][1] - bytes_of(weights.base.weights) < 10_000
        assert 0 <= sent[1][1] - bytes_of(pack_adapters(weights)[0]) < 10_000
        assert sent[1][1] < sent[0][1] / 5

        # Whoever comes back is told what is there; another base is another one.
        async with await connect(f"127.0.0.1:{port}", key=KEY) as again:
            assert again.base == weights.base.id
            await again.load(trainer.weights(), 4)
            other = trainer_of(tiny("qwen3", 7), rank=2)
            await again.load(other.weights(), 5)
            assert_same(engine.held, without_tied(by_peft(other.model)))
            await again.load(trainer.weights(), 6)
            assert [call for call, _ in sent[4:]] == ["load", "lay", "load", "lay", "load"]
            # Weights that are whole need no base, and the one that is there goes.
            await again.load(tiny("qwen3").state_dict(), 7)
            assert again.base is None
            await again.load(trainer.weights(), 8)
            assert [call for call, _ in sent[9:]] == ["load", "lay", "load"]
            assert_same(engine.held, without_tied(by_peft(trainer.model)))
    await engine.close()


def without_tied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is left of weights where a tied head is sent once."""
    return {name: value for name, value in weights.items() if name != "lm_head.weight"}


async def test_adapters_without_their_base_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "adapters"
    weights = parts_of(trainer_of(tiny("qwen3")))
    file.write_bytes(to_safetensors(*pack_adapters(weights)))
    engine = Keeper()
    async with (
        asyncio.timeout(DEADLINE_S),
        served(engine) as port,
        await connect(f"127.0.0.1:{port}", key=KEY) as remote,
    ):
        with pytest.raises(ValueError, match="base here is none; send the base first"):
            await remote.load(file, 3)
        await remote.lay(base_file(tmp_path, "another"), "another")
        with pytest.raises(ValueError, match="base here is another"):
            await remote.send(file, 3)
        assert (remote.version, engine.loads) == (0, [])
    await engine.close()


def base_file(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_bytes(to_safetensors(tiny("qwen3").state_dict()))
    return file


async def test_an_address_that_comes_back_is_given_the_base_and_the_newest_adapters(
    sent: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_module, "FIRST_WAIT_S", 0.01)
    trainer = trainer_of(tiny("qwen3"))
    first, second = Keeper(), Keeper()
    async with asyncio.timeout(DEADLINE_S):
        async with served(first) as port:
            engine = AddressEngine(f"127.0.0.1:{port}", key=KEY, start_s=DEADLINE_S)
            await engine.load(trainer.weights(), 1)
            moved(trainer.model, seed=2)
            await engine.load(trainer.weights(), 2)
        assert [call for call, _ in sent] == ["lay", "load", "load"]
        async with served(second, port):
            await engine.generate(request())
            assert [call for call, _ in sent[3:]] == ["lay", "load"]
            assert second.version == 2
            assert_same(second.held, without_tied(by_peft(trainer.model)))
            await engine.close()
        await first.close()
        await second.close()


def request(number: int = 0, tokens: int = 12) -> GenerateRequest:
    return GenerateRequest(
        id=f"a/{number}/0/0", prompt=(2, 3, 4 + number), max_new_tokens=tokens, seed=number
    )


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    # Not the base: engines are to have the one that they are given.
    model = tiny("qwen3", 9)
    folder = tmp_path_factory.mktemp("policy")
    return recipe_in(folder, model, context_tokens=CONTEXT_TOKENS)


@pytest.mark.nightly
async def test_processes_sample_what_the_trainer_scores_and_replacements_too(
    recipe: EngineSpec,
) -> None:
    """Two engines over one base in shared memory, which load in turn; one dies."""
    trainer = trainer_of(tiny("qwen3"), rank=2)
    ours = SharedWeights(trainer.weights())
    assert ours.base is not None
    assert ours.base is SharedWeights(trainer.weights()).base
    assert ours.path.stat().st_size < ours.base.path.stat().st_size / 5
    engines = [ProcessEngine(recipe, max_restarts=1) for _ in range(2)]
    local = LocalEngine(tiny("qwen3"), slots=4, context_tokens=CONTEXT_TOKENS)
    async with asyncio.timeout(DEADLINE_S), local, EngineReplicas(engines) as replicas:
        for version in range(1, 4):
            moved(trainer.model, seed=version)
            await replicas.roll(await replicas.prepare(trainer.weights()), version)
            await local.load(trainer.weights(), version)
            drawn = await local.generate(request())
            assert set(drawn.versions) == {version}
            for engine in engines:
                assert await engine.generate(request()) == drawn
        told = await local.generate(request(1))
        dead, served = engines[0].pid, engines[0].served
        assert dead is not None
        assert served is not None
        os.kill(dead, signal.SIGKILL)
        while served.is_open:  # noqa: ASYNC110 - there is nothing else to wait on
            await asyncio.sleep(0.01)
        assert await engines[0].generate(request(1)) == told
        assert engines[0].pid != dead
        moved(trainer.model, seed=9)
        await replicas.load(trainer.weights(), 4)
        await local.load(trainer.weights(), 4)
        assert await engines[0].generate(request()) == await local.generate(request())


class Deaf(LocalEngine):
    """An engine that takes some loads for done without doing anything."""

    ignores: Sequence[int] = ()
    asked = 0

    async def load(self, weights: Any, version: int) -> None:
        self.asked += 1
        if self.asked in self.ignores:
            self._version = version
            return
        await super().load(weights, version)


async def test_adapters_that_did_not_arrive_are_found_and_sent_again(
    sent: list[tuple[str, int]],
) -> None:
    trainer = trainer_of(tiny("qwen3"))
    engine = Deaf(tiny("qwen3"), slots=2, context_tokens=CONTEXT_TOKENS)
    engine.ignores = (2,)
    async with (
        asyncio.timeout(DEADLINE_S),
        engine,
        served(engine) as port,
        AddressEngine(f"127.0.0.1:{port}", key=KEY) as remote,
    ):
        for version in (1, 2):
            moved(trainer.model, seed=version)
            proven = add_proof(trainer, ProbeSection(tokens=9), max_gap=1e-3)
            await remote.load(proven, version)
        assert remote.went_back == 1
    # Back to the last good adapters, and the new ones again, over the one base.
    assert [call for call, _ in sent] == ["lay", "load", "load", "load", "load"]


# --- the config -----------------------------------------------------------------------------------


def config_of(adapters: str, lora: dict[str, Any] | None) -> RunConfig:
    return RunConfig.model_validate(
        {
            "env": {"id": "grid/Treasure-v0"},
            "engine": {"kind": "vllm", "vllm": {"adapters": adapters}},
            "learn": {"lora": lora},
        }
    )


def test_vllm_is_told_of_adapters_of_its_own_where_the_config_asks_for_them() -> None:
    for adapters, rank in (("merged", None), ("native", 3)):
        recipe = build_engine_spec(config_of(adapters, {"rank": 3}), "folder", device="cpu")
        assert recipe.vllm.get("adapter_rank") == rank
        fields = {name: value for name, value in recipe.vllm.items() if name != "sampler"}
        assert VllmServerSettings(model="folder", **fields).adapter_rank == rank
        assert EngineSpec.from_json(recipe.to_json()) == recipe


def test_adapters_that_there_are_none_of_are_refused() -> None:
    def said(config: RunConfig) -> list[str]:
        found = [text for rule in RULES for text in rule(config)]
        return [text for text in found if text.startswith("engine.vllm.adapters")]

    (text,) = said(config_of("native", None))
    assert "learn.lora is not set" in text
    assert said(config_of("native", {})) == said(config_of("merged", None)) == []
