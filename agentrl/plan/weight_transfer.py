"""Bytes and seconds of new weights on their way to the engines, per path."""

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.plan.machine import MachineSpec
from agentrl.plan.model_shape import BYTES, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPath:
    """One way from the trainer to the engines."""

    name: str
    sent_bytes: int
    seconds: float


def adapter_parameters(config: RunConfig, shape: ModelShape) -> int | None:
    """Return the number of parameters of the adapters; None where all weights train."""
    import torch

    from agentrl.learn.lora import adapt

    if config.learn.lora is None:
        return None
    with torch.device("meta"):
        model = shape.make()
        adapt(model, config.learn.lora, seed=0)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def weight_paths(
    machine: MachineSpec,
    *,
    sent_bytes: int,
    ranks: int,
    engines: int,
    engine_devices: int = 1,
    read_share: float = 1.0,
    shares_devices: bool = False,
) -> tuple[WeightPath, ...]:
    """Return the paths there are: through the host's memory, within a GPU that trainer and engine
    share, by a process group, by sockets.

    Each begins with the shards collected on the first rank. Engines read the host's memory at the
    same time, each device its `read_share` of it; a broadcast gives every device all weights; a
    socket carries them once per engine. Within a GPU they are read and written.
    """
    device = machine.device
    engine_gpus = engines * engine_devices
    gpus = max(ranks, engine_gpus) if shares_devices else ranks + engine_gpus
    spans_nodes = gpus > machine.per_node
    link = machine.network_bytes_per_s if spans_nodes else device.link_bytes_per_s
    gather_s = sent_bytes * (ranks - 1) / ranks / link
    host_s = (1 + read_share) * sent_bytes / device.host_bytes_per_s
    paths = [
        WeightPath(name="shared memory", sent_bytes=2 * sent_bytes, seconds=gather_s + host_s),
        WeightPath(name="broadcast", sent_bytes=sent_bytes, seconds=gather_s + sent_bytes / link),
        WeightPath(
            name="sockets",
            sent_bytes=sent_bytes * engines,
            seconds=gather_s + host_s + sent_bytes * engines / machine.network_bytes_per_s,
        ),
    ]
    if shares_devices and engine_devices == 1 and not spans_nodes:
        copy_s = 2 * sent_bytes / device.bytes_per_s
        paths.append(WeightPath(name="ipc", sent_bytes=sent_bytes, seconds=gather_s + copy_s))
    return tuple(paths[1:] if spans_nodes else paths)


def sent_bytes_of(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of an update: all weights in the engine's type, or the float32 adapters."""
    adapters = adapter_parameters(config, shape)
    if adapters is not None:
        return adapters * BYTES["float32"]
    return shape.parameters * BYTES[config.policy.dtype]


def path_of(
    config: RunConfig, paths: tuple[WeightPath, ...], *, shares_devices: bool = False
) -> WeightPath:
    """Return the path that a config takes. `ConfigError` for one that the machine does not have."""
    names = {path.name: path for path in paths}
    transfer = config.engine.vllm.transfer if config.engine.kind == "vllm" else "folder"
    if transfer == "nccl" and shares_devices:
        raise ConfigError(
            "engine.vllm.transfer is nccl, but an engine has a GPU of the trainer's: nccl needs "
            "GPUs of their own for both; set it to ipc or folder, or lower learn.devices.count"
        )
    if config.engine.broadcast is not None or transfer == "nccl":
        return names["broadcast"]
    if transfer == "ipc":
        if "ipc" not in names:
            raise ConfigError(
                "engine.vllm.transfer is ipc, but trainer and engines have GPUs of their own, or "
                "an engine has several: ipc needs the trainer's GPU for the engine, and no other; "
                "set it to nccl or folder"
            )
        return names["ipc"]
    if config.engine.addresses:
        return names["sockets"]
    return names.get("shared memory", names["sockets"])
