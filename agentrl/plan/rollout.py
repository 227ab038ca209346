"""Memory and speed of an engine: weights, KV cache and slots, decode and prefill by roofline."""

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.machine import THIS, DeviceSpec
from agentrl.plan.model_shape import BYTES, ModelShape

LOCAL_LAYER_S = 450e-6
"""Seconds per layer in which the local engine launches a decode step's kernels on a GPU, where
they take less: 12.8 ms for 28 layers beside an H200."""
WORKSPACE_BYTES = 2**30
"""Of vLLM, beside weights and cache: activations of a prefill, graphs. An assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """One engine process."""

    weight_bytes: int
    cache_bytes: int
    kv_bytes_per_token: int
    slots: int
    """Requests at once: `engine.slots`, or as many as the cache has room for."""
    room_slots: int
    """Requests of the longest context that the cache has room for."""
    held_bytes: int
    """All it takes of its device."""
    loading_bytes: int
    """More than that while new weights come: the local engine arranges them beside the old ones."""
    step_s: float
    """One decode step with all slots taken, at the mean context."""
    first_step_s: float
    """One decode step of a single request."""
    tokens_per_s: float
    prefill_tokens_per_s: float


def decode_step_s(
    shape: ModelShape, device: DeviceSpec, *, requests: int, context_tokens: float, dtype: str
) -> float:
    """Return the least seconds in which a batch of requests gets one token each."""
    cache_bytes = requests * context_tokens * shape.kv_bytes_per_token(dtype)
    read_bytes = shape.touched_parameters(requests) * BYTES[dtype] + cache_bytes
    flops = 2 * shape.active_parameters * requests
    return max(read_bytes / device.bytes_per_s, flops / peak_of(device, dtype))


def peak_of(device: DeviceSpec, dtype: str) -> float:
    """Return the roof of arithmetic in a type."""
    return device.float32_flops_per_s if dtype == "float32" else device.bf16_flops_per_s


def engine_bytes(config: RunConfig, shape: ModelShape, device: DeviceSpec) -> tuple[int, int]:
    """Return the bytes of the KV cache, perhaps below 0, and of all that an engine takes."""
    dtype, engine = config.policy.dtype, config.engine
    weight_bytes = shape.parameters * BYTES[dtype]
    if engine.kind == "local":
        places = engine.slots * engine.context_tokens
        cache_bytes = places * shape.kv_bytes_per_token(dtype)
        return cache_bytes, weight_bytes + cache_bytes
    if engine.vllm.cache_bytes is not None:
        cache_bytes = engine.vllm.cache_bytes
        return cache_bytes, weight_bytes + cache_bytes + WORKSPACE_BYTES
    held_bytes = round(engine.vllm.memory_fraction * device.memory_bytes)
    return held_bytes - weight_bytes - WORKSPACE_BYTES, held_bytes


def plan_rollout(
    config: RunConfig, shape: ModelShape, device: DeviceSpec, *, context_tokens: float
) -> RolloutCost:
    """Return the cost of an engine whose requests have so many tokens in the mean."""
    dtype, engine = config.policy.dtype, config.engine
    cache_bytes, held_bytes = engine_bytes(config, shape, device)
    kv_bytes = shape.kv_bytes_per_token(dtype)
    mean_slots = max(1, int(cache_bytes / (kv_bytes * context_tokens)))
    slots = min(engine.slots, mean_slots)

    is_launched = engine.kind == "local" and device.name != THIS
    launch_s = LOCAL_LAYER_S * shape.config.num_hidden_layers if is_launched else 0.0

    def step_s(requests: int) -> float:
        roofline_s = decode_step_s(
            shape, device, requests=requests, context_tokens=context_tokens, dtype=dtype
        )
        return max(roofline_s, launch_s)

    return RolloutCost(
        weight_bytes=shape.parameters * BYTES[dtype],
        cache_bytes=cache_bytes,
        kv_bytes_per_token=kv_bytes,
        slots=slots,
        room_slots=max(0, cache_bytes // (kv_bytes * engine.context_tokens)),
        held_bytes=held_bytes,
        loading_bytes=shape.parameters * BYTES[dtype] if engine.kind == "local" else 0,
        step_s=step_s(slots),
        first_step_s=step_s(1),
        tokens_per_s=slots / step_s(slots),
        prefill_tokens_per_s=peak_of(device, dtype) / (2 * shape.active_parameters),
    )
