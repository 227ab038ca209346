"""Unit tests of engines on several GPUs: shards, caches and times worked out by hand for the shapes
of Llama 3.1 70B and of Qwen3's mixture of experts, and the sizes that vLLM refuses.

Mutations that were seen to fail here:
- key-value heads divided beyond one, or replicated where they divide; norms divided; the vocabulary
  whole, or not filled up; layers that are left over in the last stage; a tied head in one stage;
- experts divided by tensor-parallel ranks alone, whole experts rounded down;
- one all-reduce per layer, its latency left out, a ring of n in place of 2 (n - 1) / n;
- the weights read once for all pipeline stages, slots of one data-parallel rank;
- heads, widths and GPUs that are not compared.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.plan.engine_parallel import (
    EngineParallelism,
    check_parallelism,
    count_held,
    list_tensor_sizes,
    read_parallelism,
    shard_engine,
    split_layers,
)
from agentrl.plan.machine import DEVICES, DeviceSpec, find_machine
from agentrl.plan.model_shape import ModelShape, shape_at
from agentrl.plan.rollout import (
    COLLECTIVE_S,
    all_reduce_s,
    decode_step_s,
    plan_rollout,
    prefill_rate,
)
from agentrl.plan.run_plan import EnginePlacement, change_config, place_engines
from agentrl.plan.weight_transfer import path_of, weight_paths

GIB = 2**30
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
# Of a layer of 70B: queries and output, keys and values, feed-forward, norms.
ATTENTION, KEY_VALUE = 2 * 8192 * 8192, 2 * 1024 * 8192
FEED_FORWARD, NORMS = 3 * 8192 * 28672, 2 * 8192
VOCABULARY = 2 * 128256 * 8192


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """Return the shape of Llama 3.1 70B."""
    folder = tmp_path_factory.mktemp("llama-70b")
    (folder / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    return shape_at(str(folder))


def run(options: dict[str, Any], **engine: Any) -> RunConfig:
    """Return a run with servers of vLLM."""
    section = {
        "kind": "vllm",
        "slots": 64,
        "context_tokens": 8192,
        "vllm": {"memory_fraction": 0.9, "options": options},
    }
    return RunConfig.model_validate(
        {
            "env": {"id": "code/ChainSum-v0"},
            "policy": {"path": "x", "dtype": "bfloat16"},
            "engine": {**section, **engine},
            "learn": {"micro_batch_tokens": 8192},
        }
    )


# Shards


@pytest.mark.parametrize(
    ("tensor", "layer", "kv_kib"),
    [
        (1, ATTENTION + KEY_VALUE + FEED_FORWARD + NORMS, 320),
        (4, (ATTENTION + KEY_VALUE + FEED_FORWARD) // 4 + NORMS, 80),
        (8, (ATTENTION + KEY_VALUE + FEED_FORWARD) // 8 + NORMS, 40),
        # One of eight key-value heads each: two ranks have the same.
        (16, (ATTENTION + FEED_FORWARD) // 16 + KEY_VALUE // 8 + NORMS, 40),
    ],
)
def test_tensor_parallel_ranks_of_70b(
    llama: ModelShape, tensor: int, layer: int, kv_kib: int
) -> None:
    shard = shard_engine(llama, EngineParallelism(tensor=tensor))
    assert shard.parameters == 80 * layer + VOCABULARY // tensor + 8192
    assert shard.kv_bytes_per_token("bfloat16") == kv_kib * 1024


def test_pipeline_stages_of_70b(llama: ModelShape) -> None:
    layer = ATTENTION + KEY_VALUE + FEED_FORWARD + NORMS
    two = shard_engine(llama, EngineParallelism(pipeline=2))
    assert two.parameters == 40 * layer + VOCABULARY // 2 + 8192  # the last one: head and norm
    assert two.kv_bytes_per_token("bfloat16") == 160 * 1024
    three = shard_engine(llama, EngineParallelism(pipeline=3))
    assert (three.parameters, three.layers) == (27 * layer + VOCABULARY // 2, 27)
    data = shard_engine(llama, EngineParallelism(data=2))
    assert data.parameters == llama.parameters


def test_the_widest_cache_of_a_stage_is_that_of_its_layers_with_keys(tmp_path: Path) -> None:
    kinds = ["linear_attention"] * 3 + ["full_attention"] * 2
    fields = {"model_type": "qwen3_next", "num_hidden_layers": 5, "layer_types": kinds}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields | sizes), encoding="utf-8")
    shape = shape_at(str(tmp_path))
    assert shard_engine(shape, EngineParallelism()).kv_bytes_per_token("bfloat16") == 2 * 2 * 32
    stages = shard_engine(shape, EngineParallelism(pipeline=2))
    assert (stages.layers, stages.cache_width) == (3, 2 * 32)  # the second of 3 and 2 layers


def test_a_tied_head_is_in_the_first_and_the_last_stage() -> None:
    shape = shape_at("Qwen3-0.6B")
    whole = shard_engine(shape, EngineParallelism()).parameters
    layers = whole - 151936 * 1024 - 1024
    two = shard_engine(shape, EngineParallelism(pipeline=2))
    assert two.parameters == layers // 2 + 151936 * 1024 + 1024


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(22, 4, [5, 6, 6, 5]), (61, 2, [31, 30]), (5, 3, [2, 2, 1]), (32, 4, [8, 8, 8, 8])],
)
def test_layers_that_are_left_over_go_before_the_last_stage(
    layers: int, stages: int, counts: list[int]
) -> None:
    assert split_layers(layers, stages) == counts


@given(layers=st.integers(1, 200), stages=st.integers(1, 200))
def test_every_layer_is_in_one_stage(layers: int, stages: int) -> None:
    counts = split_layers(layers, min(stages, layers))
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("sizes", "experts"),
    [
        ({"tensor": 4}, 4),
        ({"tensor": 2, "data": 2}, 4),
        ({"tensor": 2, "data": 2, "is_expert": True}, 4),
        ({"tensor": 8, "is_expert": True}, 8),
    ],
)
def test_experts_are_split_over_tensor_and_data_parallel_ranks(
    sizes: dict[str, Any], experts: int
) -> None:
    shape, parallelism = shape_at("Qwen3-30B-A3B"), EngineParallelism(**sizes)
    shard = shard_engine(shape, parallelism)
    # 48 layers, 128 experts of three matrices of 2048 x 768
    assert shard.expert_parameters == 48 * 128 * 3 * 2048 * 768 // experts
    tensor, own = parallelism.tensor, max(1, 4 // parallelism.tensor)
    layer = 2 * 4096 * 2048 // tensor + 2 * own * 128 * 2048 + 128 * 2048 + 2 * 2048 + 2 * 128
    rest = 48 * layer + 2 * 151936 * 2048 // tensor + 2048
    assert shard.parameters - shard.expert_parameters == rest
    assert shard.cache_width == 48 * 2 * own * 128


def test_whole_experts_and_rows_of_the_vocabulary_are_rounded_up() -> None:
    shape = shape_at("Qwen3-30B-A3B")
    held = count_held(
        "model.layers.0.mlp.experts.down_proj",
        (128, 2048, 768),
        shape,
        EngineParallelism(tensor=3, is_expert=True),
    )
    assert held == 43 * 2048 * 768
    rows = count_held("lm_head.weight", (100, 8), shape, EngineParallelism(tensor=4))
    assert rows == 128 // 4 * 8
    assert count_held("lm_head.weight", (100, 8), shape, EngineParallelism()) == 100 * 8


@pytest.mark.parametrize(
    ("name", "size", "held"),
    [
        ("layers.0.self_attn.q_proj.bias", (4096,), 1024),
        ("layers.0.self_attn.k_proj.bias", (512,), 128),
        ("layers.0.self_attn.o_proj.bias", (2048,), 2048),
        ("layers.0.mlp.gate.weight", (128, 2048), 128 * 2048),
        ("layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 2048), 576 * 2048),
        # 32 heads and 2 x 4 key-value heads of 128
        ("layers.0.self_attn.qkv_proj.weight", (5120, 2048), (8 + 2) * 128 * 2048),
        ("layers.0.input_layernorm.weight", (2048,), 2048),
    ],
)
def test_biases_routers_and_joined_projections(name: str, size: tuple[int, ...], held: int) -> None:
    shape = shape_at("Qwen3-30B-A3B")
    assert count_held(name, size, shape, EngineParallelism(tensor=4)) == held


# Times


def device(**changes: Any) -> DeviceSpec:
    """Return an H100 with other values."""
    return replace(DEVICES["H100-80GB"], **changes)


def test_an_all_reduce_goes_round_a_ring() -> None:
    slow = device(link_bytes_per_s=1e9)
    assert all_reduce_s(4e9, 4, slow) == pytest.approx(2 * 3 / 4 * 4 + COLLECTIVE_S)
    assert all_reduce_s(4e9, 1, slow) == 0.0


def test_a_decode_step_of_70b_on_eight_gpus(llama: ModelShape) -> None:
    shard = shard_engine(llama, EngineParallelism(tensor=8))

    def step(requests: int, context: float) -> float:
        return decode_step_s(
            shard, device(), requests=requests, context_tokens=context, dtype="bfloat16"
        )

    weights_s = 2 * 8_820_367_360 / 3.35e12
    # Two all-reduces in each of 80 layers, of one row of 8192 numbers.
    reduce_s = 160 * (2 * 7 / 8 * 2 * 8192 / 450e9 + 10e-6)
    assert step(1, 0) == pytest.approx(weights_s + reduce_s)
    cache_s = 32 * 4000 * 40 * 1024 / 3.35e12
    many_s = 160 * (2 * 7 / 8 * 32 * 2 * 8192 / 450e9 + 10e-6)
    assert step(32, 4000) == pytest.approx(weights_s + cache_s + many_s)


def test_pipeline_stages_read_their_weights_one_after_the_other(llama: ModelShape) -> None:
    whole, halves = (shard_engine(llama, EngineParallelism(pipeline=stages)) for stages in (1, 2))

    def step(shard: Any, requests: int, context: float) -> float:
        return decode_step_s(
            shard, device(), requests=requests, context_tokens=context, dtype="bfloat16"
        )

    sent_s = 2 * (2 * 8192 / 450e9 + 10e-6)
    assert step(halves, 1, 0) == pytest.approx(2 * 2 * halves.parameters / 3.35e12 + sent_s)
    # Two halves of a batch at the same time: each stage has half of the requests, and layers.
    caches_s = 64 * 4000 * 320 * 1024 / 3.35e12
    gained_s = step(whole, 64, 4000) - step(halves, 64, 4000)
    assert gained_s == pytest.approx(caches_s / 2, rel=0.05)


def test_experts_add_up_over_the_tokens_of_all_data_parallel_ranks() -> None:
    shape = shape_at("Qwen3-30B-A3B")
    shard = shard_engine(shape, EngineParallelism(data=4))
    slow = device(link_bytes_per_s=1e6)
    rows = decode_step_s(shard, slow, requests=32, context_tokens=0, dtype="bfloat16")
    # A layer adds up its experts over four GPUs, eight rows of each; attention is alone.
    experts_s = 48 * 2 * 3 / 4 * 32 * 2048 * 2 / 1e6
    assert rows == pytest.approx(experts_s, rel=0.01)


def test_prompts_of_70b_are_computed_by_all_gpus(llama: ModelShape) -> None:
    eight = shard_engine(llama, EngineParallelism(tensor=8))
    fast = device(link_bytes_per_s=1e30)
    rate = prefill_rate(eight, fast, tokens=8192, dtype="bfloat16")
    seconds = 8192 * 2 * 8_820_367_360 / 989e12 + 160 * 10e-6
    assert rate == pytest.approx(8192 / seconds)
    data = shard_engine(llama, EngineParallelism(data=2))
    alone = 989e12 / (2 * llama.parameters)
    assert prefill_rate(data, fast, tokens=8192, dtype="bfloat16") == pytest.approx(2 * alone)


# Memory and slots


def test_the_cache_of_70b_on_four_gpus(llama: ModelShape) -> None:
    config = run({"tensor_parallel_size": 4})
    cost = plan_rollout(config, llama, device(), context_tokens=4096.0)
    weight_bytes = 2 * 17_639_415_808
    assert (cost.devices, cost.weight_bytes) == (4, weight_bytes)
    assert cost.cache_bytes == 72 * GIB - weight_bytes - GIB
    assert cost.room_slots == cost.cache_bytes // (80 * 1024 * 8192) == 61
    assert cost.slots == 64
    alone = plan_rollout(run({}), llama, device(), context_tokens=4096.0)
    assert alone.cache_bytes < 0
    assert alone.room_slots == 0


def test_data_parallel_ranks_have_slots_each() -> None:
    shape = shape_at("Qwen3-8B")
    one, two = (
        plan_rollout(run({"data_parallel_size": data}), shape, device(), context_tokens=4096.0)
        for data in (1, 2)
    )
    assert (two.slots, two.room_slots) == (2 * one.slots, 2 * one.room_slots)
    assert two.cache_bytes == one.cache_bytes
    assert two.tokens_per_s == pytest.approx(2 * one.tokens_per_s)


# What a config says


def test_sizes_are_read_from_the_options_of_vllm() -> None:
    options = {
        "tensor_parallel_size": 2,
        "pipeline-parallel-size": 2,
        "data_parallel_size": 2,
        "enable-expert-parallel": True,
    }
    parallelism = read_parallelism(run(options))
    assert parallelism == EngineParallelism(tensor=2, pipeline=2, data=2, is_expert=True)
    assert parallelism.devices == 8
    assert parallelism.describe() == "TP 2, PP 2, DP 2, EP 4"
    assert read_parallelism(run(options, kind="local")) == EngineParallelism()
    assert EngineParallelism(is_expert=True).describe() == ""


def test_engines_of_one_device_have_no_sizes() -> None:
    options = {"tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match=r"asks for 2 GPUs for one engine and .* is agentrl"):
        read_parallelism(run({}, vllm={"sampler": "agentrl", "options": options}))
    ray = change_config(run(options, processes=2), {"cluster": {"kind": "ray"}})
    with pytest.raises(ConfigError, match=r"cluster.kind is ray, whose engines are on one GPU"):
        read_parallelism(ray)
    assert read_parallelism(change_config(run({}, processes=2), {"cluster": {"kind": "ray"}}))


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        ("Qwen3-8B", {"tensor": 3}, r"is 3, which does not divide the 32 .* 1, 2, 4, 8 or 16"),
        ("Qwen3-8B", {"tensor": 16}, r"asks for 16 GPUs for one engine \(TP 16\), and .* has 8"),
        ("Qwen3-8B", {"tensor": 4, "pipeline": 3}, r"asks for 12 GPUs .* \(TP 4, PP 3\)"),
        ("Qwen3-8B", {"is_expert": True}, r"enable_expert_parallel is true, .* no experts"),
        ("Qwen3-8B", {"pipeline": 37}, r"pipeline_parallel_size is 37, .* has 36 layers"),
        (
            "Qwen2.5-VL-7B-Instruct",
            {"tensor": 7},
            r"is 7, and .* has 4 key-value heads.* 1, 2 or 4",
        ),
        (
            "Qwen3-30B-A3B",
            {"tensor": 4, "data": 5},
            r"20 does not divide the width 768 .* or enable_expert_parallel: true",
        ),
    ],
)
def test_sizes_that_vllm_refuses(model: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_parallelism(EngineParallelism(**sizes), shape_at(model), find_machine("8xH100"))


def test_sizes_that_a_model_allows() -> None:
    shape, machine = shape_at("Qwen3-30B-A3B"), find_machine("16xH100")
    for parallelism in (
        EngineParallelism(tensor=8),
        EngineParallelism(tensor=4, data=2),
        EngineParallelism(data=8, is_expert=True),
    ):
        check_parallelism(parallelism, shape, machine)
    assert list_tensor_sizes(EngineParallelism(), shape, most=8) == [2, 4, 8]
    assert list_tensor_sizes(EngineParallelism(pipeline=2), shape, most=8) == [2, 4]
    assert list_tensor_sizes(EngineParallelism(tensor=4), shape, most=8) == [8]
    eye = shape_at("Qwen2.5-VL-7B-Instruct")  # 28 heads
    assert list_tensor_sizes(EngineParallelism(), eye, most=8) == [2, 4]


# Devices and weights


@pytest.mark.parametrize(
    ("tensor", "processes", "ranks", "expected"),
    [
        (2, 2, 4, EnginePlacement(engines=2, room=2, beside_ranks=0, apart=1)),
        (4, 1, 4, EnginePlacement(engines=1, room=1, beside_ranks=0, apart=1)),
        (2, 3, 4, EnginePlacement(engines=3, room=2, beside_ranks=0, apart=2)),
        # Four devices are too few for one engine, so it has those of the ranks, too.
        (8, 1, 4, EnginePlacement(engines=1, room=0, beside_ranks=1, apart=1)),
        (8, 1, 8, EnginePlacement(engines=1, room=0, beside_ranks=1, apart=0)),
    ],
)
def test_engines_of_several_gpus_are_dealt_as_by_a_run(
    tensor: int, processes: int, ranks: int, expected: EnginePlacement
) -> None:
    config = run({"tensor_parallel_size": tensor}, processes=processes)
    config = change_config(config, {"learn.devices": {"count": ranks}})
    assert place_engines(config, find_machine("8xH100")) == expected


def test_each_gpu_reads_its_part_of_the_weights() -> None:
    def paths(**changes: Any) -> dict[str, float]:
        found = weight_paths(
            find_machine("8xH100"), sent_bytes=64 * 10**9, ranks=4, engines=1, **changes
        )
        return {path.name: path.seconds for path in found}

    gather_s = 48e9 / 450e9
    four = paths(engine_devices=4, read_share=0.25)
    assert four["shared memory"] == pytest.approx(gather_s + 1.25)
    assert four["broadcast"] == pytest.approx(gather_s + 64e9 / 450e9)
    assert "shared memory" not in paths(engine_devices=8)  # twelve GPUs are two machines
    assert "shared memory" in paths(engine_devices=8, shares_devices=True)


def test_ipc_hands_nothing_to_an_engine_of_several_gpus() -> None:
    config = change_config(run({"tensor_parallel_size": 2}), {"engine.vllm.transfer": "ipc"})
    found = weight_paths(
        find_machine("2xH100"),
        sent_bytes=1,
        ranks=2,
        engines=1,
        engine_devices=2,
        shares_devices=True,
    )
    with pytest.raises(ConfigError, match=r"transfer is ipc, but .* an engine has several"):
        path_of(config, found)
