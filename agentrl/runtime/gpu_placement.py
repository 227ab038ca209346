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
    """Device of each engine process; empty for an engine in the trainer's process."""

    @property
    def has_own_devices(self) -> bool:
        """True if no two processes share a device, as NCCL demands."""
        devices = (*self.ranks, *self.engines)
        return len(set(devices)) == len(devices)

    def describe(self) -> str:
        """Return the placement as one line."""
        rows = [
            *(f"trainer rank {rank} on GPU {name}" for rank, name in enumerate(self.ranks)),
            *(f"engine {number} on GPU {name}" for number, name in enumerate(self.engines)),
        ]
        return "; ".join(rows)


def place_devices(
    devices: Sequence[str], *, ranks: int, engines: int, first: int = 0
) -> DevicePlacement:
    """Return one device per rank and one per engine process.

    Ranks take consecutive devices from place `first` on. Engines take the others in turn; where
    ranks have all, they go round those, from the last one on. Raises `ConfigError` for more ranks
    than devices.
    """
    if first + ranks > len(devices):
        raise ConfigError(
            f"learn.devices.count needs {first + ranks} GPUs on this machine, but {len(devices)} "
            f"are visible ({', '.join(devices) or 'none'}); lower it, or set policy.device: cpu"
        )
    rank_devices = tuple(devices[first : first + ranks])
    free = [name for name in devices if name not in rank_devices] or list(reversed(rank_devices))
    return DevicePlacement(
        ranks=rank_devices, engines=tuple(free[number % len(free)] for number in range(engines))
    )


def visible_devices(count: int, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the `count` devices that torch sees here, in its order."""
    names = [name.strip() for name in environment.get(VARIABLE, "").split(",") if name.strip()]
    return tuple(names[:count]) if len(names) >= count else tuple(map(str, range(count)))
