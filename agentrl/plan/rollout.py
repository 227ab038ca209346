"""Memory and speed of an engine: weights, KV cache and slots, decode and prefill by roofline.

An engine of several GPUs is seen from one of them: its shard of the model, its part of the batch,
and what it sends to the others.
"""

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.engine.vllm.launch import CPU_CACHE_BYTES
from agentrl.plan.engine_parallel import (
    EngineParallelism,
    EngineShard,
    read_parallelism,
    shard_engine,
)
from agentrl.plan.machine import THIS, DeviceSpec
from agentrl.plan.model_shape import BYTES, ModelShape

LOCAL_LAYER_S = 450e-6
"""Seconds per layer in which the local engine launches a decode step's kernels on a GPU, where
they take less: 12.8 ms for 28 layers beside an H200."""
WORKSPACE_BYTES = 2**30
"""Of vLLM, beside weights and cache: activations of a prefill, graphs. An assumption."""
COLLECTIVE_S = 10e-6
"""Seconds of one collective between GPUs, beside those of its bytes. An assumption."""
PREFILL_TOKENS = 8192
"""Prompt tokens of a step of vLLM's server on a large GPU, unless `engine.vllm.prefill_tokens` says
otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """One engine; bytes are those of one of its devices."""

    parallelism: EngineParallelism
    weight_bytes: int
    weight_share: float
    """Part of the model that a device holds."""
    cache_bytes: int
    kv_bytes_per_token: int
    slots: int
    """Requests at once: `engine.slots`, of each data-parallel rank, or as many as the cache has
    room for."""
    room_slots: int
    """Requests of the longest context that the cache has room for."""
    held_bytes: int
    """All it takes of a device."""
    asleep_bytes: int
    """Bytes it keeps of that while the trainer computes: fewer with `engine.vllm.sleep_level`, and
    of the local engine on a CPU, which has no cache then."""
    loading_bytes: int
    """More than that while new weights come: the local engine arranges them beside the old ones."""
    step_s: float
    """One decode step with all slots taken, at the mean context."""
    first_step_s: float
    """One decode step of a single request."""
    all_reduce_s: float
    """Part of `step_s` in which tensor-parallel ranks add up what each has computed."""
    tokens_per_s: float
    prefill_tokens_per_s: float

    @property
    def devices(self) -> int:
        """Return the number of devices of the engine."""
        return self.parallelism.devices


def all_reduce_s(moved_bytes: float, ranks: int, device: DeviceSpec) -> float:
    """Return the seconds in which ranks of one machine add up a tensor, in a ring."""
    if ranks == 1:
        return 0.0
    return 2 * (ranks - 1) / ranks * moved_bytes / device.link_bytes_per_s + COLLECTIVE_S


def reduce_s(shard: EngineShard, device: DeviceSpec, *, tokens: float, dtype: str) -> float:
    """Return the seconds of the all-reduces of a pipeline stage for so many tokens of a
    data-parallel rank: two per layer, of which that of experts spans the tokens of all ranks."""
    parallelism = shard.parallelism
    row_bytes = tokens * shard.hidden_size * BYTES[dtype]
    attention_s = all_reduce_s(row_bytes, parallelism.tensor, device)
    if shard.experts[0] == 1:
        return 2 * shard.layers * attention_s
    experts_s = all_reduce_s(row_bytes * parallelism.data, parallelism.expert_ranks, device)
    return shard.layers * (attention_s + experts_s)


def send_s(shard: EngineShard, device: DeviceSpec, *, tokens: float, dtype: str) -> float:
    """Return the seconds in which a pipeline stage hands so many tokens to the next one."""
    if shard.parallelism.pipeline == 1:
        return 0.0
    return tokens * shard.hidden_size * BYTES[dtype] / device.link_bytes_per_s + COLLECTIVE_S


def decode_step_s(
    shard: EngineShard, device: DeviceSpec, *, requests: float, context_tokens: float, dtype: str
) -> float:
    """Return the least seconds in which a batch of requests gets one token each.

    Data-parallel ranks have equal parts of the batch. Pipeline stages work at the same time on as
    many parts of that, and a token goes through all of them.
    """
    rows = stage_rows(shard.parallelism, requests)
    cache_bytes = rows * context_tokens * shard.kv_bytes_per_token(dtype)
    read_bytes = shard.touched_parameters(rows) * BYTES[dtype] + cache_bytes
    flops = shard.flops_per_token * rows
    roofline_s = max(read_bytes / device.bytes_per_s, flops / peak_of(device, dtype))
    sent_s = reduce_s(shard, device, tokens=rows, dtype=dtype)
    sent_s += send_s(shard, device, tokens=rows, dtype=dtype)
    return shard.parallelism.pipeline * (roofline_s + sent_s)


def stage_rows(parallelism: EngineParallelism, requests: float) -> float:
    """Return the requests of a batch that a pipeline stage has at a time."""
    rank_requests = max(1.0, requests / parallelism.data)
    return rank_requests / min(parallelism.pipeline, rank_requests)


def prefill_rate(shard: EngineShard, device: DeviceSpec, *, tokens: int, dtype: str) -> float:
    """Return the prompt tokens per second of an engine, in steps of so many tokens."""
    compute_s = shard.flops_per_token * tokens / peak_of(device, dtype)
    sent_s = reduce_s(shard, device, tokens=tokens, dtype=dtype)
    sent_s += send_s(shard, device, tokens=tokens, dtype=dtype)
    return shard.parallelism.data * tokens / (compute_s + sent_s)


def peak_of(device: DeviceSpec, dtype: str) -> float:
    """Return the roof of arithmetic in a type."""
    return device.float32_flops_per_s if dtype == "float32" else device.bf16_flops_per_s


def engine_bytes(config: RunConfig, shard: EngineShard, device: DeviceSpec) -> tuple[int, int]:
    """Return the bytes of the KV cache on a device of an engine, perhaps below 0, and of all that
    the engine takes of it."""
    dtype, engine = config.policy.dtype, config.engine
    weight_bytes = shard.parameters * BYTES[dtype]
    if engine.kind == "local":
        places = engine.slots * engine.context_tokens
        cache_bytes = places * shard.kv_bytes_per_token(dtype)
        return cache_bytes, weight_bytes + cache_bytes
    cache_bytes = engine.vllm.cache_bytes
    if cache_bytes is None and device.name == THIS:
        cache_bytes = CPU_CACHE_BYTES
    if cache_bytes is not None:
        return cache_bytes, weight_bytes + cache_bytes + WORKSPACE_BYTES
    held_bytes = round(engine.vllm.memory_fraction * device.memory_bytes)
    return held_bytes - weight_bytes - WORKSPACE_BYTES, held_bytes


def sleeps(config: RunConfig) -> bool:
    """Return whether engines give up weights and cache while the trainer computes."""
    return config.engine.kind == "vllm" and config.engine.vllm.sleep_level > 0


def plan_rollout(
    config: RunConfig, shape: ModelShape, device: DeviceSpec, *, context_tokens: float
) -> RolloutCost:
    """Return the cost of an engine whose requests have so many tokens in the mean."""
    dtype, engine = config.policy.dtype, config.engine
    parallelism = read_parallelism(config)
    shard = shard_engine(shape, parallelism)
    cache_bytes, held_bytes = engine_bytes(config, shard, device)
    kv_bytes = shard.kv_bytes_per_token(dtype)
    mean_slots = max(1, int(cache_bytes / (kv_bytes * context_tokens)))
    slots = parallelism.data * min(engine.slots, mean_slots)

    is_launched = engine.kind == "local" and device.name != THIS
    launch_s = LOCAL_LAYER_S * shape.config.num_hidden_layers if is_launched else 0.0

    def step_s(requests: int) -> float:
        roofline_s = decode_step_s(
            shard, device, requests=requests, context_tokens=context_tokens, dtype=dtype
        )
        return max(roofline_s, launch_s)

    rows = stage_rows(parallelism, slots)
    asleep_bytes = held_bytes
    if sleeps(config):
        asleep_bytes = WORKSPACE_BYTES
    elif engine.kind == "local" and device.name == THIS and config.rollout.mode != "async":
        asleep_bytes = held_bytes - cache_bytes
    return RolloutCost(
        parallelism=parallelism,
        weight_bytes=shard.parameters * BYTES[dtype],
        weight_share=shard.parameters / shape.parameters,
        cache_bytes=cache_bytes,
        kv_bytes_per_token=kv_bytes,
        slots=slots,
        room_slots=parallelism.data * max(0, cache_bytes // (kv_bytes * engine.context_tokens)),
        held_bytes=held_bytes,
        asleep_bytes=asleep_bytes,
        loading_bytes=shard.parameters * BYTES[dtype] if engine.kind == "local" else 0,
        step_s=step_s(slots),
        first_step_s=step_s(1),
        all_reduce_s=parallelism.pipeline * reduce_s(shard, device, tokens=rows, dtype=dtype),
        tokens_per_s=slots / step_s(slots),
        prefill_tokens_per_s=prefill_rate(
            shard, device, tokens=engine.vllm.prefill_tokens or PREFILL_TOKENS, dtype=dtype
        ),
    )
