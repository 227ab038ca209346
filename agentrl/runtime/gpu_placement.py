"""CUDA devices of this machine, dealt to the trainer's ranks and to engine processes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlacement:
    """Devices, each by its name in `CUDA_VISIBLE_DEVICES`."""

    ranks: tuple[str, ...]
    """Device of each rank of the trainer."""
    engines: tuple[str, ...]
    """Devices of each engine process, joined by commas where it has several; empty for an engine in
    the trainer's process."""

    @property
    def has_own_devices(self) -> bool:
        """True if no two processes share a device, as NCCL demands."""
        devices = [*self.ranks, *(name for group in self.engines for name in group.split(","))]
        return len(set(devices)) == len(devices)

    def describe(self) -> str:
        """Return the placement as one line."""
        rows = [
            *(f"trainer rank {rank} on GPU {name}" for rank, name in enumerate(self.ranks)),
            *(f"engine {number} on GPU {name}" for number, name in enumerate(self.engines)),
        ]
        return "; ".join(rows)


def place_devices(
    devices: Sequence[str], *, ranks: int, engines: int, first: int = 0, per_engine: int = 1
) -> DevicePlacement:
    """Return one device per rank, and `per_engine` ones per engine process.

    Ranks take consecutive devices from place `first` on. Engines take the others in turn; where
    those are too few for one engine, they go round all, those of the ranks from the last one on.
    Raises `ConfigError` for more ranks, or devices of one engine, than there are devices.
    """
    if first + ranks > len(devices):
        raise ConfigError(
            f"learn.devices.count needs {first + ranks} GPUs on this machine, but {len(devices)} "
            f"are visible ({', '.join(devices) or 'none'}); lower it, or set policy.device: cpu"
        )
    rank_devices = tuple(devices[first : first + ranks])
    if engines and per_engine > len(devices):
        raise ConfigError(
            f"engine.vllm.options asks for {per_engine} GPUs for one engine, but {len(devices)} "
            f"are visible on this machine ({', '.join(devices) or 'none'}); lower its parallel "
            "sizes"
        )
    free = [name for name in devices if name not in rank_devices]
    if len(free) < per_engine:
        free += reversed(rank_devices)
    groups = [
        [free[(number * per_engine + place) % len(free)] for place in range(per_engine)]
        for number in range(engines)
    ]
    return DevicePlacement(ranks=rank_devices, engines=tuple(map(",".join, groups)))


def visible_devices(count: int, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the `count` devices that torch sees here, in its order."""
    names = [name.strip() for name in environment.get(VARIABLE, "").split(",") if name.strip()]
    return tuple(names[:count]) if len(names) >= count else tuple(map(str, range(count)))
