"""Unit tests of the planner: goldens from published configs and arithmetic done by hand, the trace
against tensors whose bytes are known, faults and the lines that mend them.

Mutations that were seen to fail here:
- KV cache without its values, in another type, or per query head: the table of bytes per token;
- active parameters with all experts, touched ones without the empty draws: the mixture of experts;
- decode without the cache, or without the arithmetic: the two roofs of decoding;
- gradients or moments of adapters counted for the whole model: the states of a rank;
- weights by ipc that are read and not written, or between devices: the path of a shared GPU.
"""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from agentrl.config.check import cross_check
from agentrl.config.learn import LearnSection
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learn.context_parallel import check_heads
from agentrl.learn.layouts import LAYOUTS
from agentrl.plan.engine_parallel import EngineParallelism, shard_engine
from agentrl.plan.kernel_time import kernel_s
from agentrl.plan.machine import (
    DEVICES,
    PAGED_BYTES,
    THIS,
    DeviceSpec,
    RoofShares,
    find_machine,
)
from agentrl.plan.model_shape import ModelShape, find_shape, shape_at
from agentrl.plan.op_trace import KernelWork, trace_ops
from agentrl.plan.report import advice_lines
from agentrl.plan.rollout import LOCAL_LAYER_S, decode_step_s, plan_rollout
from agentrl.plan.run_plan import (
    EnginePlacement,
    RunPlan,
    change_config,
    check_context,
    check_expert_updates,
    could_sleep,
    find_faults,
    longest_sequences,
    peak_beside_engines,
    place_engines,
    plan_run,
    plan_training,
    suggest_changes,
)
from agentrl.plan.schedule import fit_trace, mean_tokens, name_bound
from agentrl.plan.training import forward_s
from agentrl.plan.weight_transfer import WeightPath, path_of, sent_bytes_of, weight_paths
from agentrl.simulate.synthetic import synthetic

KIB, GIB = 2**10, 2**30
TRACE = synthetic("agentic")

SMALL: dict[str, Any] = {
    "env": {"id": "code/ChainSum-v0"},
    "policy": {"make": {"hidden_size": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 32}},
    "engine": {"slots": 8, "context_tokens": 256},
    "sampling": {"max_turn_tokens": 32},
    "rollout": {"tasks_per_step": 2, "group_size": 4, "concurrency": 8, "max_turns": 2},
    "learn": {"micro_batch_tokens": 512},
}


def small(**changes: Any) -> RunConfig:
    """Return a small run, with other values at dotted keys (`__` is the dot)."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return change_config(RunConfig.model_validate(SMALL), keys)


# Shapes


@pytest.mark.parametrize(
    ("name", "parameters", "kv_kib"),
    [
        ("Qwen3-0.6B", 596_049_920, 112),
        ("Qwen3-1.7B", 1_720_574_976, 112),
        ("Qwen3-4B", 4_022_468_096, 144),
        ("Qwen3-8B", 8_190_735_360, 144),
        ("Qwen3-30B-A3B", 30_532_122_624, 96),
        ("Qwen2.5-VL-7B-Instruct", 8_292_166_656, 56),
    ],
)
def test_published_shapes(name: str, parameters: int, kv_kib: int) -> None:
    shape = shape_at(f"Qwen/{name}")
    assert shape.parameters == parameters
    shard = shard_engine(shape, EngineParallelism())
    assert shard.kv_bytes_per_token("bfloat16") == kv_kib * KIB
    assert shard.kv_bytes_per_token("float32") == 2 * kv_kib * KIB


def test_a_token_meets_eight_experts_of_128() -> None:
    shape = shape_at("qwen3-30b-a3b")
    # 48 layers, 128 experts of three matrices of 2048 x 768
    assert shape.expert_parameters == 48 * 128 * 3 * 2048 * 768
    assert shape.active_parameters == 30_532_122_624 - 48 * 120 * 3 * 2048 * 768
    shard = shard_engine(shape, EngineParallelism())
    assert shard.touched_parameters(1) == pytest.approx(shape.active_parameters)
    assert shard.flops_per_token == pytest.approx(2 * shape.active_parameters)
    share = 1 - (1 - 8 / 128) ** 32
    expected = shape.parameters - shape.expert_parameters * (1 - share)
    assert shard.touched_parameters(32) == pytest.approx(expected)
    dense = shard_engine(shape_at("Qwen3-4B"), EngineParallelism())
    assert dense.touched_parameters(32) == 4_022_468_096


MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "num_key_value_heads": 4}
GEMMA4 = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 32,
}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("qwen3", {}),
        ("gemma4_text", GEMMA4),
        ("gemma4_text", GEMMA4 | {"num_kv_shared_layers": 2}),
        ("deepseek_v2", MLA | {"first_k_dense_replace": 4}),
        ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}),
        ("qwen3_5_text", {"linear_num_key_heads": 2, "linear_num_value_heads": 2}),
    ],
)
def test_a_token_has_as_much_cache_as_transformers_gives_it(
    tmp_path: Any, kind: str, fields: dict[str, Any]
) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}
    heads = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": kind, **sizes, **heads, "pad_token_id": 0, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shape = shape_at(str(tmp_path))
    model = shape.make()
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.ones(1, 5, dtype=torch.long), past_key_values=cache)
    parts = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    held = sum(part.numel() for part in parts if part is not None)
    assert 5 * sum(shape.kv_widths()) == held
    check_heads(model.config, 1)


def test_experts_of_gemma_4_are_met_by_the_number_in_its_config(tmp_path: Any) -> None:
    experts = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32}
    config = {"model_type": "gemma4_text", **sizes, **experts, "enable_moe_block": True}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    shape = shape_at(str(tmp_path))
    assert shape.experts == (8, 2)
    assert shape.parameters - shape.active_parameters == 2 * 6 * 3 * 32 * 16


def test_a_folder_is_planned_by_its_config_alone(tmp_path: Any) -> None:
    shape_at("Qwen3-0.6B").model.config.save_pretrained(tmp_path)
    assert shape_at(str(tmp_path)).parameters == 596_049_920


def test_a_packaged_model_is_planned_by_the_folder_made_of_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_MODELS", str(tmp_path))
    with pytest.raises(ConfigError, match="agentrl model get smollm2-135m"):
        shape_at("smollm2-135m")
    shape_at("Qwen3-0.6B").model.config.save_pretrained(tmp_path / "smollm2-135m")
    assert shape_at("smollm2-135m").name == "smollm2-135m"


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"'nobody/Nothing-1B'.*Qwen3-0.6B.*config.json"):
        shape_at("nobody/Nothing-1B")
    (tmp_path / "config.json").write_text('{"model_type": "no such kind"}')
    with pytest.raises(ConfigError, match="cannot be read by AutoConfig"):
        shape_at(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "t5"}', "a t5 of this config.json cannot be made"),
        ('{"model_type": "qwen3", "num_attention_heads": 0}', "a qwen3 of this config.json"),
        ('{"model_type": "qwen3", "pad_token_id": 151936}', "made: AssertionError: Padding_idx"),
        ('{"model_type": "mamba", "num_hidden_layers": 1}', "a mamba of this config.json"),
        ('{"model_type": "qwen3", "num_hidden_layers": "2"}', "StrictDataclassField.*layers"),
        ('{"model_type": "qwen3", "dtype": "float17"}', "AttributeError: .*'float17'"),
        ('{"model_type": "qwen3", "rope_parameters": {"rope_type": "odd"}}', "KeyError: 'odd'"),
        (
            '{"model_type": "qwen3", "num_hidden_layers": 99999999}',
            "num_hidden_layers 99,999,999, and",
        ),
        ('{"model_type": "qwen3", "num_hidden_layers": -3}', "layers -3, and a plan is of 1 to"),
        ('{"model_type": "qwen3", "num_hidden_layers": 0}', "layers 0, and a plan is of 1 to"),
        ("[", "cannot be read by AutoConfig"),
    ],
)
def test_a_config_that_is_no_language_model_is_refused(
    tmp_path: Any, config: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=message):
        shape_at(str(tmp_path)).kv_widths()


# Machines


def test_a_machine_is_named_by_count_and_device() -> None:
    machine = find_machine("8xH100-80GB")
    assert (machine.count, machine.name, machine.device.bytes_per_s) == (8, "8xH100-80GB", 3.35e12)
    assert find_machine("rtx4090").device is DEVICES["RTX4090-24GB"]
    assert find_machine(" 16x H200").count == 16
    assert find_machine("8 x H100-80GB") == machine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xB9000", "is not known; name one such as 8xH200"),
        ("8xFOO", "is not known; name one such as 8xH200"),
        ("0xFOO", "is not known; name one such as 8xH200"),
        ("8x", "is not known; name one such as 8xH200"),
        ("2xA100", r"fits several devices \(A100-80GB, A100-40GB\); name one"),
        ("0xH100", "has 0 devices; plan for 1 to 4096, such as 8xH100-80GB"),
        (f"{'9' * 40}xH100", "plan for 1 to 4096"),
        (f"{'9' * 5000}xH100", "is not known"),
        ("8 * H100", r"is not COUNTxDEVICE \(is 8xH100-80GB meant\?\); name one"),
        ("H100x8", r"is not known \(is 8xH100-80GB meant\?\)"),
        ("8H100", r"is not known \(is 8xH100-80GB meant\?\)"),
        ("16xRTX 4090", r"\(is 16xRTX4090-24GB meant\?\)"),
        ("8xH100-80G", r"\(is 8xH100-80GB meant\?\)"),
        ("H100 80GB", r"\(is 1xH100-80GB meant\?\)"),
        ("", "is not COUNTxDEVICE"),
        ("8xthis", "planned as it is"),
    ],
)
def test_other_machines_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_machine(text)


# Kernels and traces


def device(**changes: Any) -> DeviceSpec:
    """Return a device of round numbers."""
    numbers: dict[str, Any] = {
        "name": "round",
        "memory_bytes": GIB,
        "bf16_flops_per_s": 1000.0,
        "float32_flops_per_s": 100.0,
        "bytes_per_s": 10.0,
        "link_bytes_per_s": 5.0,
        "host_bytes_per_s": 2.0,
        "call_s": 1.0,
    }
    return DeviceSpec(**{**numbers, **changes})


@pytest.mark.parametrize(
    ("kernel", "seconds"),
    [
        (KernelWork("mm", flops=1000, moved_bytes=10), 10.0),
        (KernelWork("mm", flops=1000, moved_bytes=10, is_float32=False), 1.0),
        (KernelWork("mm", flops=1000, moved_bytes=200), 20.0),
        (KernelWork("add", flops=0, moved_bytes=1), 1.0),
    ],
)
def test_a_kernel_takes_its_slower_half(kernel: KernelWork, seconds: float) -> None:
    assert kernel_s(kernel, device()) == seconds


def test_attention_and_new_pages_have_roofs_of_their_own() -> None:
    attention = KernelWork("aten._scaled_dot_product_flash_attention_for_cpu", 1000, 10)
    assert kernel_s(attention, device(attention_flops_per_s=50.0)) == 20.0
    large = KernelWork("aten.neg", 0, 10, new_bytes=PAGED_BYTES + 1)
    paged = device(page_bytes_per_s=float(PAGED_BYTES + 1))
    assert kernel_s(large, paged) == 2.0
    assert kernel_s(large, device()) == 1.0


def test_a_makers_roofs_are_reached_in_part() -> None:
    """Mutants seen caught: the shares of products and attention swapped; traffic at its roof."""
    shares = RoofShares(products=0.5, traffic=0.25, attention=0.2, flex_attention=0.1)
    maker = device(shares=shares)
    product = KernelWork("aten.mm", 1000, 10)
    assert kernel_s(product, maker) == 20.0
    assert kernel_s(KernelWork("aten.add", 0, 10), maker) == 4.0
    attention = KernelWork("aten._scaled_dot_product_flash_attention_for_cpu", 1000, 10)
    assert kernel_s(attention, maker) == 50.0
    assert kernel_s(attention, maker, is_flex=True) == 100.0
    measured = device(shares=shares, attention_flops_per_s=50.0)
    assert kernel_s(attention, measured, is_flex=True) == 20.0


@pytest.mark.parametrize(
    ("layout", "is_flex"), [("padded", False), ("packed", True), ("tree", True)]
)
def test_packed_rows_take_flex_attention(layout: str, is_flex: bool) -> None:
    cost = planned(small(learn__layout=layout))
    assert cost.is_flex == is_flex
    slow = replace(device(), shares=RoofShares(flex_attention=1e-9), call_s=0.0)
    assert (forward_s(cost, slow) > 100 * forward_s(cost, device(call_s=0.0))) == is_flex


def test_a_trace_counts_storages_once_and_until_they_are_freed() -> None:
    with trace_ops() as trace:
        one = torch.zeros(256, 256)
        view = one[:128].T
        assert trace.live_bytes == 256 * 256 * 4
        other = one + 1
        del one
        assert trace.live_bytes == 2 * 256 * 256 * 4  # the view holds it
        del view, other
        assert trace.live_bytes == 0
        assert trace.peak_bytes == 2 * 256 * 256 * 4
        trace.restart()
        assert trace.peak_bytes == 0


def test_a_trace_follows_storages_that_are_resized() -> None:
    with trace_ops() as trace:
        one = torch.zeros(1024)
        one.untyped_storage().resize_(0)
        assert trace.live_bytes == 0
        one.untyped_storage().resize_(8192)
        assert (trace.live_bytes, trace.peak_bytes) == (8192, 8192)


def test_products_are_counted_and_views_are_not() -> None:
    with trace_ops() as trace:
        one, other = torch.zeros(8, 16), torch.zeros(16, 32)
        trace.restart()
        (one @ other).view(-1)[:4].detach()
    assert trace.flops == 2 * 8 * 16 * 32
    assert trace.calls == 1


def test_attention_is_counted_forward_and_backward() -> None:
    query = torch.zeros(1, 2, 64, 16)
    with trace_ops() as trace:
        one, two, three = (torch.zeros_like(query).requires_grad_() for _ in range(3))
        trace.restart()
        attention = torch.nn.functional.scaled_dot_product_attention
        attention(one, two, three, is_causal=True).sum().backward()
    pair = 2 * 2 * 64 * 64 * 16  # one product of all pairs, in both heads
    assert trace.flops == (2 * pair + 5 * pair) // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_experts_are_traced_in_any_type(dtype: torch.dtype) -> None:
    rows, width, wide, experts = 32, 16, 64, 4
    with trace_ops() as trace:
        inputs = torch.zeros(rows, width, dtype=dtype, requires_grad=True)
        weights = torch.zeros(experts, width, wide, dtype=dtype, requires_grad=True)
        ends = torch.zeros(experts, dtype=torch.int32)
        trace.restart()
        out = torch.nn.functional.grouped_mm(inputs, weights, offs=ends)
        assert out.dtype == dtype
        assert trace.flops == 2 * rows * width * wide
        out.square().sum().backward()
        assert weights.grad is not None
        assert (weights.grad.dtype, weights.grad.shape) == (dtype, weights.shape)
    assert trace.flops == 3 * 2 * rows * width * wide
    products = [kernel for kernel in trace.kernels if "grouped" in kernel.name]
    sizes = {rows * wide, rows * width, experts * width * wide}
    assert {kernel.new_bytes // dtype.itemsize for kernel in products} == sizes
    assert {kernel.is_float32 for kernel in products} == {dtype == torch.float32}


# Training


def planned(config: RunConfig) -> Any:
    """Return the training cost of a config."""
    return plan_training(config, find_shape(config), fit_trace(TRACE, config))


def test_the_states_of_a_rank() -> None:
    config = small()
    count = find_shape(config).parameters
    cost = planned(config)
    states = (cost.parameter_bytes, cost.gradient_bytes, cost.optimizer_bytes, cost.copy_bytes)
    assert states == (4 * count, 4 * count, 8 * count, 0)
    rounded = planned(small(learn__precision="bfloat16"))
    states = (rounded.parameter_bytes, rounded.gradient_bytes, rounded.optimizer_bytes)
    assert states == (2 * count, 4 * count, 12 * count)  # and masters


def test_adapters_alone_have_gradients_and_moments() -> None:
    config = small(learn__lora={"rank": 2, "targets": ["q_proj"]}, learn__kl={})
    count = find_shape(config).parameters
    adapters = 2 * (2 * 64 + 64 * 2)  # two layers, 64 to 64
    cost = planned(config)
    assert cost.parameter_bytes == 4 * (count + adapters)
    assert (cost.gradient_bytes, cost.optimizer_bytes) == (4 * adapters, 8 * adapters)
    assert cost.copy_bytes == 0  # the reference is the model below
    assert sent_bytes_of(config, find_shape(config)) == 4 * adapters


def test_a_reference_and_an_average_are_copies() -> None:
    config = small(learn__kl={}, learn__ema={})
    assert planned(config).copy_bytes == 8 * find_shape(config).parameters


def test_moments_in_8_bits() -> None:
    """A byte for each number and four for 256 of them; tensors below 4096 stay in float32."""
    config = small(learn__optimizer={"moments": "8bit"})
    sizes = [p.numel() for p in find_shape(config).make().parameters()]
    large = [size for size in sizes if size >= 4096]
    assert all(size % 256 == 0 for size in large)
    assert 0 < len(large) < len(sizes)
    expected = sum(2 * (size + size // 64 + 1024) for size in large)
    expected += sum(8 * size for size in sizes if size < 4096)
    assert planned(config).optimizer_bytes == expected
    plain = planned(small())
    assert planned(config).activation_bytes == plain.activation_bytes
    assert expected < 0.3 * plain.optimizer_bytes


def test_what_is_offloaded_is_not_on_the_device() -> None:
    config = small(learn__offload=True, learn__ema={})
    count = find_shape(config).parameters
    cost = planned(config)
    # Gradients, moments, float32 weights beside those of the device, and their average.
    assert cost.host_bytes == (4 + 8 + 4 + 4) * count
    assert cost.held_bytes == 4 * count
    rounded = planned(small(learn__offload=True, learn__precision="bfloat16", learn__kl={}))
    assert rounded.host_bytes == (4 + 12) * count
    assert rounded.held_bytes == (2 + 2) * count  # and the reference
    two = planned(small(learn__offload=True, learn__kl={}, learn__devices={"count": 2}))
    assert two.held_bytes == 0
    assert two.host_bytes == pytest.approx((16 + 4) * count / 2, rel=0.01)
    assert planned(small()).host_bytes == 0


def test_checkpointing_keeps_less_and_computes_more() -> None:
    plain, less = planned(small()), planned(small(learn__gradient_checkpointing=True))
    assert less.saved_bytes < plain.saved_bytes
    assert less.forward.keys() == plain.forward.keys()
    assert less.flops > plain.flops
    assert less.held_bytes == plain.held_bytes


def test_two_ranks_hold_half_each_and_leave_no_process_group() -> None:
    one, two = planned(small()), planned(small(learn__devices={"count": 2}))
    for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        assert getattr(two, name) == pytest.approx(getattr(one, name) / 2, rel=0.01)
    assert two.activation_bytes > one.activation_bytes  # the collected weights
    assert not torch.distributed.is_initialized()


def test_the_longest_micro_batch_is_full() -> None:
    config = small()
    sequences = longest_sequences(config, fit_trace(TRACE, config))
    assert [len(s.token_ids) for s in sequences] == [256] * 4
    for name in ("padded", "packed", "tree"):
        cost = planned(small(learn__layout=name))
        assert 256 < cost.places <= 512
    tree, packed = (
        LAYOUTS[name](4096).measure(sequences).places(range(len(sequences)))
        for name in ("tree", "packed")
    )
    assert tree < packed


def test_micro_batches_shorter_than_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="micro_batch_tokens is 100, below"):
        planned(small(learn__micro_batch_tokens=100))


def test_numbers_without_bound_are_refused_or_harmless() -> None:
    with pytest.raises(ConfigError, match="goes up to 4,194,304"):
        planned(small(learn__micro_batch_tokens=10**12, engine__context_tokens=10**12))
    with pytest.raises(ConfigError, match="context_tokens is 1, but"):
        planned(small(engine__context_tokens=1))
    config = small(rollout__group_size=10**9)
    assert len(longest_sequences(config, fit_trace(TRACE, config))) < 20


# Rollouts, weights, schedule


def test_decoding_is_bound_by_weights_then_by_the_cache_then_by_arithmetic() -> None:
    shape, h100 = shape_at("Qwen3-8B"), DEVICES["H100-80GB"]
    shard = shard_engine(shape, EngineParallelism())

    def step(requests: int, context: float) -> float:
        return decode_step_s(
            shard, h100, requests=requests, context_tokens=context, dtype="bfloat16"
        )

    weights = 2 * shape.parameters
    assert step(1, 0) == pytest.approx(weights / 3.35e12)
    cache = 64 * 8192 * 144 * KIB
    assert step(64, 8192) == pytest.approx((weights + cache) / 3.35e12)
    assert step(4096, 0) == pytest.approx(4096 * 2 * shape.parameters / 989e12)


def test_the_local_engine_launches_each_kernel_of_a_gpu() -> None:
    local, vllm = small(), small(engine={"kind": "vllm", "context_tokens": 256})
    shape = find_shape(local)
    h200, here = DEVICES["H200-141GB"], replace(DEVICES["H200-141GB"], name=THIS)
    launched_s = LOCAL_LAYER_S * 2
    assert plan_rollout(local, shape, h200, context_tokens=100.0).step_s == launched_s
    assert plan_rollout(local, shape, here, context_tokens=100.0).step_s < launched_s
    assert plan_rollout(vllm, shape, h200, context_tokens=100.0).step_s < launched_s


def test_slots_are_what_the_cache_has_room_for() -> None:
    config = small(
        policy={"path": "Qwen3-8B", "dtype": "bfloat16"},
        engine={"kind": "vllm", "slots": 64, "context_tokens": 16384},
        learn__micro_batch_tokens=16384,
    )
    cost = plan_rollout(config, shape_at("Qwen3-8B"), DEVICES["H100-80GB"], context_tokens=16384.0)
    assert cost.held_bytes == 36 * GIB  # 0.45 of 80
    assert cost.cache_bytes == 36 * GIB - 2 * 8_190_735_360 - GIB
    assert cost.slots == cost.room_slots == cost.cache_bytes // (144 * KIB * 16384)
    assert cost.tokens_per_s == pytest.approx(cost.slots / cost.step_s)


def test_a_local_engine_has_old_and_new_weights_while_it_loads() -> None:
    config = small()
    shape = find_shape(config)
    rollout = plan_rollout(config, shape, DEVICES["H100-80GB"], context_tokens=100.0)
    assert rollout.loading_bytes == 4 * shape.parameters
    training = planned(config)
    beside = peak_beside_engines(training, rollout)
    assert beside == rollout.held_bytes + training.peak_bytes  # activations are more
    none = replace(training, activation_bytes=0)
    weights = 4 * shape.parameters
    assert peak_beside_engines(none, rollout) == none.held_bytes + rollout.held_bytes + weights
    vllm = small(engine={"kind": "vllm", "context_tokens": 256})
    cost = plan_rollout(vllm, shape, DEVICES["H100-80GB"], context_tokens=100.0)
    assert cost.loading_bytes == 0


def test_weights_go_by_the_host_by_links_or_by_sockets() -> None:
    paths = {
        p.name: p
        for p in weight_paths(find_machine("8xH100"), sent_bytes=64 * 10**9, ranks=4, engines=4)
    }
    gather_s = 48e9 / 450e9
    assert paths["shared memory"].seconds == pytest.approx(gather_s + 2.0)
    assert paths["broadcast"].seconds == pytest.approx(gather_s + 64e9 / 450e9)
    assert paths["sockets"].sent_bytes == 4 * 64 * 10**9
    far = weight_paths(find_machine("16xH100"), sent_bytes=10**9, ranks=8, engines=8)
    assert [path.name for path in far] == ["broadcast", "sockets"]
    assert far[0].seconds == pytest.approx((7 / 8 + 1) / 50)


def test_ipc_reads_and_writes_the_memory_of_a_shared_gpu() -> None:
    def paths(name: str, ranks: int, *, shares_devices: bool) -> tuple[WeightPath, ...]:
        return weight_paths(
            find_machine(name),
            sent_bytes=10**9,
            ranks=ranks,
            engines=1,
            shares_devices=shares_devices,
        )

    config = small(engine={"kind": "vllm", "context_tokens": 256, "vllm": {"transfer": "ipc"}})
    shared = paths("1xH100", 1, shares_devices=True)
    assert [path.name for path in shared] == ["shared memory", "broadcast", "sockets", "ipc"]
    taken = path_of(config, shared)
    assert (taken.name, taken.sent_bytes) == ("ipc", 10**9)
    assert taken.seconds == pytest.approx(2e9 / 3.35e12)
    two = path_of(config, paths("2xH100", 2, shares_devices=True))
    assert two.seconds == pytest.approx(0.5e9 / 450e9 + 2e9 / 3.35e12)
    for apart in (
        paths("2xH100", 1, shares_devices=False),
        paths("16xH100", 16, shares_devices=True),
    ):
        with pytest.raises(ConfigError, match=r"transfer is ipc, but .* set it to nccl or folder"):
            path_of(config, apart)


def test_other_transfers_take_their_path() -> None:
    def taken(machine: str, **engine: Any) -> str:
        config = small(engine={"context_tokens": 256, **engine})
        found = weight_paths(find_machine(machine), sent_bytes=1, ranks=1, engines=1)
        return path_of(config, found).name

    nccl = {"kind": "vllm", "vllm": {"transfer": "nccl"}}
    assert taken("2xH100", **nccl) == "broadcast"
    with pytest.raises(ConfigError, match="GPUs of their own for both; set it to ipc or folder"):
        path_of(small(engine={"context_tokens": 256, **nccl}), (), shares_devices=True)
    assert taken("2xH100", kind="vllm") == "shared memory"
    assert taken("2xH100", processes=1, broadcast={}) == "broadcast"
    assert taken("2xH100", addresses=["127.0.0.1:9"]) == "sockets"


def test_whole_weights_of_experts_do_not_go_to_vllm() -> None:
    """Kills: experts of any engine; adapters without the key, and the key without adapters."""
    shape = shape_at("qwen3-30b-a3b")
    lora = {"rank": 8, "alpha": 16, "targets": ["q_proj"]}
    native, merged = ({"kind": "vllm", "vllm": {"adapters": a}} for a in ("native", "merged"))
    for engine, adapters in ((merged, None), (merged, lora), (native, None)):
        with pytest.raises(ConfigError, match=r"128 experts per layer.*adapters: native"):
            check_expert_updates(small(engine=engine, learn={"lora": adapters}), shape)
    check_expert_updates(small(engine=native, learn={"lora": lora}), shape)
    check_expert_updates(small(engine={"kind": "local"}), shape)
    check_expert_updates(small(engine=merged), shape_at("qwen3-8b"))


def test_a_trace_is_cut_to_the_limits_of_the_config() -> None:
    config = small()
    fitted = fit_trace(TRACE, config)
    for one in fitted.trajectories:
        assert 1 <= len(one.turns) <= 2
        assert all(0 < turn.tokens <= 32 for turn in one.turns)
        replies = sum(turn.reply_tokens for turn in one.turns)
        assert one.prompt_tokens + one.tokens + replies <= 256
    assert mean_tokens(fitted) <= 256


@pytest.mark.parametrize(
    ("shares", "mode", "bound"),
    [
        ({"the trainer": 0.9, "the engines": 0.5}, "async", "the trainer"),
        ({"the trainer": 0.2, "the engines": 0.8}, "sync", "the engines"),
        ({"the trainer": 0.4, "the engines": 0.6}, "sync", "the engines and the others in turn"),
        ({"the trainer": 0.4, "the engines": 0.6}, "async", "the tail of long trajectories"),
    ],
)
def test_what_a_run_waits_for(shares: dict[str, float], mode: str, bound: str) -> None:
    assert name_bound(shares, mode)[0] == bound


# Whole plans


def plan(config: RunConfig, machine: str = "1xH100-80GB") -> RunPlan:
    """Return the plan of a config."""
    return plan_run(config, find_shape(config), find_machine(machine), TRACE)


def test_a_plan_has_every_mode_and_no_fault() -> None:
    result = plan(small())
    assert [one.mode for one in result.modes] == ["sync", "partial", "async"]
    assert result.forecast.mode == "sync"
    assert result.faults == ()
    assert all(one.steps_per_hour > 0 and math.isfinite(one.steps_per_hour) for one in result.modes)


def test_engines_have_devices_of_their_own_where_ranks_leave_some() -> None:
    two = small(engine__processes=2, learn__devices={"count": 2})
    apart = EnginePlacement(engines=2, room=2, beside_ranks=0, apart=1)
    assert place_engines(two, find_machine("4xH100")) == apart
    shared = EnginePlacement(engines=2, room=0, beside_ranks=1, apart=0)
    assert place_engines(two, find_machine("2xH100")) == shared
    own = EnginePlacement(engines=1, room=3, beside_ranks=1, apart=0)
    assert place_engines(small(), find_machine("4xH100")) == own
    elsewhere = small(engine={"addresses": ["a:1", "b:1"], "context_tokens": 256})
    there = EnginePlacement(engines=2, room=0, beside_ranks=0, apart=1)
    assert place_engines(elsewhere, find_machine("1xH100")) == there


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learn.devices.count is 4, but 1xH100-80GB has 1"):
        plan(small(learn__devices={"count": 4}))


def large(**changes: Any) -> RunConfig:
    """Return a run of a wide model of two layers, in float32: 0.4 B parameters."""
    wide = {"hidden_size": 2048, "layers": 2, "heads": 16, "kv_heads": 8, "head_dim": 128}
    return small(
        policy={"make": {**wide, "intermediate_size": 6144, "vocab_size": 150_000}},
        engine={"kind": "vllm", "slots": 32, "context_tokens": 4096},
        learn__micro_batch_tokens=16384,
        **changes,
    )


def test_a_context_beyond_the_models_is_refused_or_warned_of() -> None:
    """Mutant seen caught: the error of vLLM as a warning."""
    shape = find_shape(small())  # made for contexts of 256 tokens
    config = small(engine__context_tokens=512)
    (warning,) = check_context(config, shape)
    assert "up to 256 tokens (max_position_embeddings)" in warning
    assert list(check_context(small(), shape)) == []
    vllm = small(engine={"kind": "vllm", "context_tokens": 512})
    with pytest.raises(ConfigError, match=r"engine.context_tokens is 512, but the model"):
        list(check_context(vllm, shape))


def test_advice_is_a_line_for_the_modes_that_share_it() -> None:
    result = plan(small())
    lines = advice_lines(result)
    assert [line.split(": ")[0] for line in lines] == ["sync, partial", "async"] or len(lines) < 3
    assert all(one.advice in "\n".join(lines) for one in result.modes)


def test_too_large_a_model_gets_more_gpus_per_engine() -> None:
    """Mutant seen caught: the least size, with or without room."""
    vllm = {"kind": "vllm", "context_tokens": 4096, "vllm": {"memory_fraction": 0.0165}}
    config = change_config(
        large(learn__devices={"count": 4}),
        {"engine": vllm, "policy.dtype": "bfloat16", "learn.lora": {"rank": 4}},
    )
    shape, machine = find_shape(config), find_machine("8xH100")
    rooms = [
        plan_rollout(
            change_config(config, {"engine.vllm.options": {"tensor_parallel_size": size}}),
            shape,
            machine.device,
            context_tokens=100.0,
        ).room_slots
        for size in (1, 2, 4)
    ]
    assert rooms[:2] == [0, 0] < rooms[2:]
    changes = suggest_changes(config, shape, machine, TRACE)
    assert changes == {"engine.vllm.options": {"tensor_parallel_size": 4}}


def test_lines_that_make_a_run_fit_do_make_it_fit() -> None:
    config, machine = large(), find_machine("1xRTX4090")
    result = plan(config, "1xRTX4090")
    assert [fault.name for fault in result.faults] == ["a trainer rank with the engine beside it"]
    assert result.modes == ()
    changes = suggest_changes(config, find_shape(config), machine, TRACE)
    assert changes is not None
    assert next(iter(changes)) == "policy.dtype"
    assert plan(change_config(config, changes), "1xRTX4090").faults == ()


def test_lines_that_the_config_does_not_allow_are_left_out() -> None:
    engine = {"slots": 2, "context_tokens": 2048, "addresses": ["here:1"], "key_file": "key"}
    config = change_config(large(learn__proximal={"name": "snapshot"}), {"engine": engine})
    machine = find_machine("8xRTX4090")
    machine = replace(machine, device=replace(machine.device, memory_bytes=9 * GIB))
    changes = suggest_changes(config, find_shape(config), machine, TRACE)
    assert changes is not None
    assert list(changes)[-2:] == ["learn.micro_batch_tokens", "learn.offload"]
    assert cross_check(change_config(config, changes)) == []


def test_a_server_beside_a_rank_could_sleep() -> None:
    """While it sleeps the trainer has its room, and while it samples activations are freed.

    Mutants seen caught: a server that sleeps holds all; one that is awake holds 1 GiB while the
    trainer computes.
    """
    vllm = {"kind": "vllm", "context_tokens": 256, "vllm": {"cache_bytes": 20 * GIB}}
    config = small(engine=vllm)
    machine = find_machine("1xRTX4090")
    training = replace(planned(config), activation_bytes=2 * GIB)
    awake, asleep = (
        plan_rollout(
            change_config(config, {"engine.vllm.sleep_level": level}),
            find_shape(config),
            machine.device,
            context_tokens=100.0,
        )
        for level in (0, 1)
    )
    assert awake.asleep_bytes == awake.held_bytes == asleep.held_bytes
    assert asleep.asleep_bytes == GIB
    together = awake.held_bytes + training.peak_bytes
    assert peak_beside_engines(training, awake) == together
    assert peak_beside_engines(training, asleep) == awake.held_bytes + training.held_bytes
    hungry = replace(training, activation_bytes=22 * GIB)
    assert peak_beside_engines(hungry, asleep) == GIB + hungry.peak_bytes
    faults = find_faults(config, training, awake, machine)
    assert [fault.name for fault in faults] == ["a trainer rank with the engine beside it"]
    assert list(find_faults(config, training, asleep, machine)) == []


@pytest.mark.parametrize(
    ("mode", "machine", "is_asleep"),
    [("sync", "", True), ("partial", "", True), ("async", "", False), ("sync", "1xRTX4090", False)],
)
def test_a_local_engine_on_a_cpu_has_no_cache_while_the_trainer_computes(
    mode: str, machine: str, is_asleep: bool
) -> None:
    config = small(rollout__mode=mode)
    device = (
        find_machine(machine).device
        if machine
        else replace(find_machine("1xRTX4090").device, name=THIS)
    )
    cost = plan_rollout(config, find_shape(config), device, context_tokens=100.0)
    assert cost.cache_bytes > 0
    assert cost.asleep_bytes == cost.held_bytes - is_asleep * cost.cache_bytes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"rollout.mode": "partial"}, True),
        ({"rollout.mode": "async"}, False),
        ({"engine.vllm.sleep_level": 1}, False),
        ({"engine.vllm.adapters": "native", "learn.lora": {"rank": 4}}, False),
        ({"engine": {"kind": "local", "context_tokens": 256}}, False),
    ],
    ids=["sync", "partial", "async", "sleeps", "native adapters", "local"],
)
def test_a_server_could_sleep_where_it_takes_turns_with_a_rank(
    changes: dict[str, Any], expected: bool
) -> None:
    config = change_config(small(engine={"kind": "vllm", "context_tokens": 256}), changes)
    assert could_sleep(config, find_machine("1xRTX4090")) is expected
    assert not could_sleep(config, find_machine("2xRTX4090"))


def test_engines_that_would_share_a_device_are_fewer() -> None:
    vllm = {"kind": "vllm", "context_tokens": 256, "processes": 4, "vllm": {"memory_fraction": 0.9}}
    config = small(engine=vllm, learn__devices={"count": 4})
    assert [fault.name for fault in plan(config, "7xH100").faults] == ["a device of 2 engines"]
    changes = suggest_changes(config, find_shape(config), find_machine("7xH100"), TRACE)
    assert changes == {"engine.processes": 3}
    assert plan(change_config(config, {"engine.processes": 3}), "7xH100").faults == ()


def test_a_cache_without_room_for_one_request_is_a_fault() -> None:
    vllm = {"kind": "vllm", "context_tokens": 4096, "vllm": {"memory_fraction": 0.02}}
    config = change_config(large(), {"engine": vllm, "policy.dtype": "bfloat16"})
    names = [fault.name for fault in plan(config).faults]
    assert names == ["the engine's KV cache, for one request of engine.context_tokens,"]


def test_a_model_that_nothing_makes_fit_has_no_lines() -> None:
    config = large(learn__lora={"rank": 16}, learn__gradient_checkpointing=True)
    config = change_config(
        config,
        {
            "policy": {"path": "Qwen3-8B", "dtype": "bfloat16"},
            "learn.micro_batch_tokens": 4096,
            "learn.precision": "bfloat16",
        },
    )
    tiny = ModelShape("Qwen3-8B", find_shape(config).make)
    assert suggest_changes(config, tiny, find_machine("1xRTX3090"), TRACE) is None


def test_a_config_is_changed_by_dotted_keys_and_stays_as_it_was() -> None:
    config = small()
    changed = change_config(config, {"learn.lora": {"rank": 4}, "run.steps": 3})
    assert changed.learn.lora is not None
    assert changed.run.steps == 3
    assert config.learn == LearnSection(micro_batch_tokens=512)
