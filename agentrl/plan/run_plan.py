"""The plan of a run on a machine: what each device holds, how long each phase takes, what fits."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.config.check import cross_check
from agentrl.config.learn import LearnSection
from agentrl.config.learning.conflicts import find_head_fault
from agentrl.config.run import RunConfig
from agentrl.config.schema import plain
from agentrl.errors import ConfigError
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.sequence_layout import MaskedTokens
from agentrl.metrics.latency_trace import LatencyTrace
from agentrl.models.context_length import find_context_fault, find_context_limit, is_refused
from agentrl.plan.engine_parallel import check_parallelism, list_tensor_sizes, read_parallelism
from agentrl.plan.machine import THIS, DeviceSpec, MachineSpec
from agentrl.plan.model_shape import BYTES, ModelShape, head_width
from agentrl.plan.rollout import COLLECTIVE_S, RolloutCost, plan_rollout, sleeps
from agentrl.plan.schedule import ModeForecast, fit_trace, forecast_modes, mean_tokens
from agentrl.plan.training import (
    TrainingCost,
    forward_s,
    largest_pass,
    optimizer_s,
    pass_s,
    trace_training,
)
from agentrl.plan.weight_transfer import WeightPath, path_of, sent_bytes_of, weight_paths
from agentrl.runtime.gpu_placement import place_devices

USABLE = 0.94
"""Share of a device's memory that tensors may take: the rest is the driver's, or in fragments."""

MOST_TOKENS = 2**22
"""Longest micro-batch that is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """Seconds of a step's training on one rank."""

    pass_s: float
    """Arithmetic and traffic of the largest micro-batch, forward and backward."""
    collect_s: float
    """Weights collected and gradients reduced meanwhile; what is longer counts."""
    passes: float
    """Micro-batches of a step on one rank, in units of the largest."""
    step_s: float
    tokens_per_s: float
    """Tokens of trajectories per second and device, shared ones counted in each."""
    mfu: float
    """Share of the device's peak that the model's arithmetic takes while it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """Engines on the devices of a machine, as a run deals them."""

    engines: int
    room: int
    """Engines that the devices without ranks have room for."""
    beside_ranks: int
    """Most engines on a device with a rank."""
    apart: int
    """Most engines on a device without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFault:
    """Something that has no room."""

    name: str
    needs_bytes: int
    has_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name} needs {self.needs_bytes / 2**30:.1f} GiB, and there are "
            f"{self.has_bytes / 2**30:.1f} GiB"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Forecast of a run. Times are least ones, by roofline: nothing here was measured."""

    model: str
    parameters: int
    active_parameters: int
    machine: MachineSpec
    ranks: int
    engines: int
    engine_room: int
    """Engines that the devices without ranks have room for."""
    shares_devices: bool
    """True if an engine and a rank are on one device."""
    training: TrainingCost
    training_time: TrainingTime
    rollout: RolloutCost
    trajectory_tokens: float
    paths: tuple[WeightPath, ...]
    path: WeightPath
    """The way of the weights that the config takes."""
    modes: tuple[ModeForecast, ...]
    mode: str
    faults: tuple[MemoryFault, ...]
    warnings: tuple[str, ...] = ()

    @property
    def forecast(self) -> ModeForecast:
        """Return the forecast of the config's own mode."""
        return next(one for one in self.modes if one.mode == self.mode)


def plan_run(
    config: RunConfig, shape: ModelShape, machine: MachineSpec, trace: LatencyTrace
) -> RunPlan:
    """Return the plan of a run.

    Raises `ConfigError` for devices that the machine does not have, for a division of the engine
    or a context that vLLM refuses, and for weights that the engines cannot be sent.
    """
    ranks = config.learn.devices.count
    check_devices(config, machine)
    check_expert_updates(config, shape)
    check_parallelism(read_parallelism(config), shape, machine)
    warnings = tuple(check_context(config, shape))
    config = _held_on(machine, config)
    placement = place_engines(config, machine)
    fitted = fit_trace(trace, config)
    length = mean_tokens(fitted)
    rollout = plan_rollout(config, shape, machine.device, context_tokens=length)
    paths = weight_paths(
        machine,
        sent_bytes=sent_bytes_of(config, shape),
        ranks=ranks,
        engines=placement.engines,
        engine_devices=rollout.devices,
        # Adapters are read whole.
        read_share=rollout.weight_share if config.learn.lora is None else 1.0,
        shares_devices=placement.beside_ranks > 0,
    )
    path = path_of(config, paths, shares_devices=placement.beside_ranks > 0)
    training = plan_training(config, shape, fitted)
    time = training_time(config, shape, training, machine, tokens=_step_tokens(config, length))
    faults = tuple(find_faults(config, training, rollout, machine))
    modes: tuple[ModeForecast, ...] = ()
    if not faults:
        modes = forecast_modes(
            config,
            fitted,
            rollout,
            engines=placement.engines,
            train_s=time.step_s,
            load_s=path.seconds,
        )
    return RunPlan(
        model=shape.name,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        machine=machine,
        ranks=ranks,
        engines=placement.engines,
        engine_room=placement.room,
        shares_devices=placement.beside_ranks > 0,
        training=training,
        training_time=time,
        rollout=rollout,
        trajectory_tokens=length,
        paths=paths,
        path=path,
        modes=modes,
        mode=config.rollout.mode,
        faults=faults,
        warnings=warnings,
    )


def _held_on(machine: MachineSpec, config: RunConfig) -> RunConfig:
    """Return a config without what has no effect on a machine: a CPU's memory is the host's."""
    if machine.device.name != THIS:
        return config
    learn = config.learn.model_copy(update={"offload": False})
    return config.model_copy(update={"learn": learn})


def check_devices(config: RunConfig, machine: MachineSpec) -> None:
    """Raise `ConfigError` for more ranks than devices."""
    ranks = config.learn.devices.count
    if machine.device.name != THIS and ranks > machine.count:
        raise ConfigError(
            f"learn.devices.count is {ranks}, but {machine.name} has {machine.count} of them; "
            f"set it to at most {machine.count}, or plan for {ranks}x{machine.device.name}"
        )


def check_expert_updates(config: RunConfig, shape: ModelShape) -> None:
    """Raise `ConfigError` for whole weights of a model with experts on their way to vLLM."""
    engine = config.engine
    sends_adapters = engine.vllm.adapters == "native" and config.learn.lora is not None
    if engine.kind == "vllm" and shape.experts[0] > 1 and not sends_adapters:
        raise ConfigError(
            f"engine.kind is vllm and {shape.name} has {shape.experts[0]} experts per layer, whose "
            "weights vLLM cannot be sent: set engine.vllm.adapters: native, and learn.lora with "
            "targets such as [q_proj, k_proj, v_proj, o_proj]"
        )


def check_context(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    """Yield a warning of a context beyond the model's. Raises `ConfigError` where it is refused."""
    if fault := find_context_fault(config, find_context_limit(shape.model.config.to_dict())):
        if is_refused(config):
            raise ConfigError(fault)
        yield fault


def count_engines(config: RunConfig) -> int:
    """Return the number of engines of a run, on this machine or elsewhere."""
    engine = config.engine
    servers = engine.endpoint.urls if engine.endpoint is not None else ()
    return max(1, engine.processes, len(engine.addresses), len(servers))


def place_engines(config: RunConfig, machine: MachineSpec) -> EnginePlacement:
    """Return the places of a run's engines: the first rank's process, or dealt as by a run.

    Engines that others serve count as on devices of their own.
    """
    engine, ranks, engines = config.engine, config.learn.devices.count, count_engines(config)
    devices = read_parallelism(config).devices
    room = max(0, machine.count - ranks) // devices
    if machine.device.name == THIS:
        return EnginePlacement(engines=engines, room=0, beside_ranks=engines, apart=0)
    if engine.addresses or engine.kind == "endpoint":
        return EnginePlacement(engines=engines, room=room, beside_ranks=0, apart=1)
    if engine.processes == 0 and not engine.is_server:
        return EnginePlacement(engines=engines, room=room, beside_ranks=1, apart=0)
    names = [str(number) for number in range(machine.count)]
    dealt = place_devices(names, ranks=ranks, engines=engines, per_engine=devices)
    counts = Counter(name for group in dealt.engines for name in group.split(","))
    beside_ranks = max(counts[name] for name in dealt.ranks)
    apart = max((counts[name] for name in names if name not in dealt.ranks), default=0)
    return EnginePlacement(engines=engines, room=room, beside_ranks=beside_ranks, apart=apart)


def longest_sequences(config: RunConfig, trace: LatencyTrace) -> Sequence[MaskedTokens]:
    """Return a group of trajectories of the longest context; of its turns the policy's part trains.

    They share their prompt, as long as the trace's, and nothing else.
    """
    context_tokens, group_size = config.engine.context_tokens, config.rollout.group_size
    prompt = max(1, min(context_tokens // 2, round(_mean_prompt(trace))))
    sampled = sum(t.tokens for t in trace.trajectories)
    replies = sum(turn.reply_tokens for t in trace.trajectories for turn in t.turns)
    every = max(2, round((sampled + replies) / max(1, replies))) if replies else context_tokens + 1
    places = np.arange(context_tokens)
    mask = (places >= prompt) & (places % every != 0)
    mask[-1] = True
    # More than two micro-batches of them would change no longest one.
    enough = 2 * config.learn.micro_batch_tokens // max(1, context_tokens - prompt) + 1
    return [
        MaskedTokens(np.where(places < prompt, 1, places + sample + 2), mask)
        for sample in range(min(group_size, enough))
    ]


def plan_training(config: RunConfig, shape: ModelShape, trace: LatencyTrace) -> TrainingCost:
    """Return the cost of a rank's longest micro-batch."""
    import torch

    if config.learn.micro_batch_tokens > MOST_TOKENS:
        raise ConfigError(
            f"learn.micro_batch_tokens is {config.learn.micro_batch_tokens:,}, and a plan goes up "
            f"to {MOST_TOKENS:,}; lower it"
        )
    if config.learn.micro_batch_tokens < config.engine.context_tokens:
        raise ConfigError(
            f"learn.micro_batch_tokens is {config.learn.micro_batch_tokens}, below "
            f"engine.context_tokens={config.engine.context_tokens}; set it to at least that"
        )
    layout = LAYOUTS[config.learn.layout](config.learn.micro_batch_tokens)
    sequences = longest_sequences(config, trace)
    vocabulary = int(shape.config.vocab_size)
    sequences = [MaskedTokens(s.token_ids % vocabulary, s.mask) for s in sequences]
    return trace_training(
        shape.make,
        config.learn,
        largest_pass(layout, sequences),
        dtype=getattr(torch, config.policy.dtype),
        ranks=config.learn.devices.count,
        temperature=config.sampling.temperature or 1.0,
    )


def training_time(
    config: RunConfig, shape: ModelShape, cost: TrainingCost, machine: MachineSpec, *, tokens: float
) -> TrainingTime:
    """Return the seconds of a step that trains so many tokens."""
    device, ranks = machine.device, config.learn.devices.count
    forward_exchange_s = exchange_s(config, shape, machine, places=cost.places)
    # The backward pass exchanges gradients, and what it computes again once more.
    exchanges = 3 if config.learn.gradient_checkpointing else 2
    scored_s = forward_s(cost, device) + forward_exchange_s
    one_s = pass_s(cost, device) + exchanges * forward_exchange_s
    collect_s = _collect_s(config, cost, machine)
    # Scored once more before the step, where later updates need the log-probs at its beginning.
    several = config.learn.minibatches * config.learn.epochs > 1
    scored = int(several and config.learn.proximal.name == "recompute")
    scored += config.learn.kl is not None
    lines = ranks // config.learn.devices.context_parallel
    passes = max(1.0, tokens / lines / cost.tokens)
    updates = config.learn.minibatches * config.learn.epochs
    each_s = config.learn.epochs * max(one_s, collect_s) + scored * max(scored_s, collect_s / 3)
    step_s = passes * each_s + updates * optimizer_s(cost, device)
    flops = passes * config.learn.epochs * cost.flops
    return TrainingTime(
        pass_s=one_s,
        collect_s=collect_s,
        passes=passes,
        step_s=step_s,
        tokens_per_s=tokens / ranks / step_s,
        mfu=flops / step_s / _peak(config, device),
    )


def _collect_s(config: RunConfig, cost: TrainingCost, machine: MachineSpec) -> float:
    """Return the seconds that a pass of a sharded model sends: weights twice, gradients once."""
    ranks = config.learn.devices.count
    if ranks == 1:
        return 0.0
    link = _link_bytes_per_s(machine, ranks)
    whole = cost.parameter_bytes * ranks
    gathered = whole if config.learn.lora is not None else whole / 4 * BYTES[config.learn.precision]
    reduced = cost.gradient_bytes * ranks
    return (2 * gathered + reduced) * (ranks - 1) / ranks / link


def exchange_s(config: RunConfig, shape: ModelShape, machine: MachineSpec, *, places: int) -> float:
    """Return the seconds in which the ranks of a context exchange the places of a line for heads,
    and back, in all layers of a forward pass."""
    ranks = config.learn.devices.context_parallel
    if ranks == 1:
        return 0.0
    # Queries and outputs, keys and values.
    queries = sum(2 * one.num_attention_heads * head_width(one) for one in shape.layers)
    width = queries + sum(shape.kv_widths())
    moved = places / ranks * width * BYTES[config.learn.precision] * (ranks - 1) / ranks
    return moved / _link_bytes_per_s(machine, ranks) + 4 * len(shape.layers) * COLLECTIVE_S


def _link_bytes_per_s(machine: MachineSpec, ranks: int) -> float:
    """Return the bytes per second over the slowest link between so many neighbours."""
    link = machine.device.link_bytes_per_s
    return min(link, machine.network_bytes_per_s) if ranks > machine.per_node else link


def find_faults(
    config: RunConfig, training: TrainingCost, rollout: RolloutCost, machine: MachineSpec
) -> Iterator[MemoryFault]:
    """Yield what has no room, by name."""
    usable = round(USABLE * machine.device.memory_bytes)
    if rollout.cache_bytes < rollout.kv_bytes_per_token * config.engine.context_tokens:
        yield MemoryFault(
            name="the engine's KV cache, for one request of engine.context_tokens,",
            needs_bytes=rollout.kv_bytes_per_token * config.engine.context_tokens,
            has_bytes=max(0, rollout.cache_bytes),
        )
    placement = place_engines(config, machine)
    ranks = config.learn.devices.count
    if machine.device.name == THIS:  # all of them share its memory
        engines = placement.engines * rollout.devices
        needs = peak_beside_engines(training, rollout, ranks=ranks, engines=engines)
        if needs > usable:
            yield MemoryFault(name="trainer and engine", needs_bytes=needs, has_bytes=usable)
        return
    apart_bytes = placement.apart * rollout.held_bytes
    if apart_bytes > usable:
        name = "an engine" if placement.apart == 1 else f"a device of {placement.apart} engines"
        yield MemoryFault(name=name, needs_bytes=apart_bytes, has_bytes=usable)
    beside = placement.beside_ranks
    peak_bytes = peak_beside_engines(training, rollout, engines=beside)
    if peak_bytes > usable:
        name = "a trainer rank with the engine beside it" if beside else "a trainer rank"
        yield MemoryFault(name=name, needs_bytes=peak_bytes, has_bytes=usable)


def peak_beside_engines(
    training: TrainingCost, rollout: RolloutCost, *, ranks: int = 1, engines: int = 1
) -> int:
    """Return the most bytes of ranks and engines in one memory: while training, where engines may
    sleep, or while new weights are loaded, after activations are freed."""
    training_bytes = training.peak_bytes * ranks + rollout.asleep_bytes * engines
    loaded_bytes = (rollout.held_bytes + rollout.loading_bytes) * engines
    return max(training_bytes, training.held_bytes * ranks + loaded_bytes)


def change_config(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return a config with other values at dotted keys."""
    values: Any = plain(config)
    for key, value in changes.items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return RunConfig.model_validate(values)


def suggest_changes(
    config: RunConfig, shape: ModelShape, machine: MachineSpec, trace: LatencyTrace
) -> Mapping[str, Any] | None:
    """Return values, by config key, with which a run fits; None where nothing tried is enough.

    They are added one after the other, the least costly first, and a rank is traced with each.
    Those that the config's other keys do not allow are left out.
    """
    changes: dict[str, Any] = {}
    traced: tuple[object, TrainingCost] | None = None
    for key, value in _candidates(config, shape, machine):
        changed = change_config(config, {**changes, key: value})
        if cross_check(changed):
            continue
        changes[key] = value
        changed = _held_on(machine, changed)
        fitted = fit_trace(trace, changed)
        trained = (changed.learn, changed.policy, changed.engine.context_tokens)
        if traced is None or traced[0] != trained:
            traced = trained, plan_training(changed, shape, fitted)
        training = traced[1]
        rollout = plan_rollout(changed, shape, machine.device, context_tokens=mean_tokens(fitted))
        if not list(find_faults(changed, training, rollout, machine)):
            return changes
        if fraction := _fraction_beside(changed, training, rollout, machine):
            with_fraction = {**changes, "engine.vllm.memory_fraction": fraction}
            changed = change_config(config, with_fraction)
            rollout = plan_rollout(
                changed, shape, machine.device, context_tokens=mean_tokens(fitted)
            )
            if not list(find_faults(changed, training, rollout, machine)):
                return with_fraction
    return None


def _candidates(
    config: RunConfig, shape: ModelShape, machine: MachineSpec
) -> Iterator[tuple[str, Any]]:
    learn, device = config.learn, machine.device
    yield from _engine_candidates(config, shape, machine)
    if config.policy.dtype == "float32" and device.name != THIS:
        yield "policy.dtype", "bfloat16"
    if learn.precision == "float32" and learn.lora is None and device.name != THIS:
        yield "learn.precision", "bfloat16"
    if not learn.gradient_checkpointing:
        yield "learn.gradient_checkpointing", True
    if learn.micro_batch_tokens > config.engine.context_tokens:
        yield "learn.micro_batch_tokens", config.engine.context_tokens
    if config.engine.kind == "local" and config.engine.slots > 8:
        yield "engine.slots", 8
    if could_sleep(config, machine):
        yield "engine.vllm.sleep_level", 1
    count = learn.devices.count
    while device.name != THIS and count * 2 <= machine.count:
        count *= 2
        yield "learn.devices.count", count
    if device.name != THIS:
        for size in list_context_sizes(learn, shape, ranks=count):
            yield "learn.devices.context_parallel", size
    if not learn.offload and device.name != THIS:
        yield "learn.offload", True
    if learn.lora is None:
        yield "learn.lora", {"rank": 16}


def could_sleep(config: RunConfig, machine: MachineSpec) -> bool:
    """Return whether servers beside ranks could give up their memory while those compute."""
    engine = config.engine
    return (
        engine.is_server
        and not sleeps(config)
        and config.rollout.mode != "async"
        and engine.vllm.adapters == "merged"
        and machine.device.name != THIS
        and place_engines(config, machine).beside_ranks > 0
    )


def list_context_sizes(learn: LearnSection, shape: ModelShape, *, ranks: int) -> list[int]:
    """Return the sizes of a context, above the config's, that so many ranks may divide lines by."""
    if learn.layout == "padded" or learn.critic is not None:
        return []
    heads, kv_heads = shape.heads
    sizes = (2**power for power in range(1, ranks.bit_length()))
    return [
        size
        for size in sizes
        if size > learn.devices.context_parallel
        and ranks % size == 0
        and not find_head_fault(size, heads=heads, kv_heads=kv_heads)
    ]


def _engine_candidates(
    config: RunConfig, shape: ModelShape, machine: MachineSpec
) -> Iterator[tuple[str, Any]]:
    """Yield the least tensor parallelism with which a cache has room for the longest context, and
    no more engines than there are devices for them."""
    if machine.device.name == THIS:
        return
    engine, ranks = config.engine, config.learn.devices.count
    free = machine.count - ranks or machine.count
    devices = read_parallelism(config).devices
    if free < devices:
        free = machine.count  # such an engine has the devices of ranks, too
    if not _has_room(config, shape, machine) and engine.is_server and config.cluster.kind != "ray":
        for size in list_tensor_sizes(read_parallelism(config), shape, most=free):
            options = {**engine.vllm.options, "tensor_parallel_size": size}
            changed = change_config(config, {"engine.vllm.options": options})
            if _has_room(changed, shape, machine):
                devices = read_parallelism(changed).devices
                yield "engine.vllm.options", options
                break
    if engine.processes * devices > free:
        yield "engine.processes", free // devices


def _has_room(config: RunConfig, shape: ModelShape, machine: MachineSpec) -> bool:
    """Return whether an engine's cache has room for a request of the longest context."""
    context_tokens = config.engine.context_tokens
    rollout = plan_rollout(config, shape, machine.device, context_tokens=context_tokens)
    return rollout.room_slots > 0


def _fraction_beside(
    config: RunConfig, training: TrainingCost, rollout: RolloutCost, machine: MachineSpec
) -> float | None:
    """Return the share of memory for vLLM that leaves the trainer its peak, if there is one."""
    if config.engine.kind != "vllm" or config.engine.vllm.cache_bytes is not None:
        return None
    room = USABLE
    if place_engines(config, machine).beside_ranks:
        beside = training.held_bytes if sleeps(config) else training.peak_bytes
        room -= beside / machine.device.memory_bytes
    fraction = int(room * 100) / 100
    return fraction if 0 < fraction < 1 else None


def _step_tokens(config: RunConfig, length: float) -> float:
    return config.rollout.tasks_per_step * config.rollout.group_size * length


def _mean_prompt(trace: LatencyTrace) -> float:
    return sum(t.prompt_tokens for t in trace.trajectories) / len(trace.trajectories)


def _peak(config: RunConfig, device: DeviceSpec) -> float:
    rounded = config.learn.precision == "bfloat16"
    return device.bf16_flops_per_s if rounded else device.float32_flops_per_s
