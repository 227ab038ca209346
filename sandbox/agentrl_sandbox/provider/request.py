"""Request by which an engine makes a provider's container: decided here, sent by `docker.py`."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandbox_provider import ContainerSpec
from agentrl_sandbox.launch.container import OOM_SCORE, EngineMachine

KEEP_ALIVE = ("sh", "-c", "trap '' INT; while :; do command eval 'sleep 3600 & wait $!'; done")
"""Command of a container that waits; as its first process it also reaps orphans.

The kernel keeps signals from it but those that a shell handles: `kill -INT 1` would end it. So
would a `sleep` that cannot be forked, the limit of processes being reached: a shell ends by an
error of its own, but not by one within `command eval`."""
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
NETWORKS = {"none": "none", "public": "default"}


def build_request(
    spec: ContainerSpec, machine: EngineMachine, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the body of the engine's `POST /containers/create`.

    The image's entry point stays, and so do its user and the engine's filter of system calls and
    set of capabilities. Raises `ConfigError` for a limit beyond the machine.
    """
    limits = spec.limits
    _check_room("cpus", limits.cpus, machine.cores, "cores")
    _check_room("memory_bytes", limits.memory_bytes, machine.memory_bytes, "bytes")
    return {
        "Image": spec.image,
        "Cmd": list(KEEP_ALIVE),
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": NETWORKS[spec.network],
            "IpcMode": "private",
            "Memory": limits.memory_bytes,
            "MemorySwap": limits.memory_bytes,
            "NanoCpus": round(limits.cpus * 10**9),
            "PidsLimit": limits.processes,
            "OomScoreAdj": OOM_SCORE,
            "LogConfig": {"Type": "none", "Config": {}},
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        },
    }


def find_entry_programs(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths at which the programs of an image's entry point may lie."""
    workdir = PurePosixPath(config.get("WorkingDir") or "/")
    folders = (workdir, *map(PurePosixPath, _PATH))
    words = config.get("Entrypoint") or ()
    return tuple(
        dict.fromkeys(str(folder / word) for word in words for folder in (folders if word else ()))
    )


def _check_room(name: str, wanted: float, there: float, unit: str) -> None:
    if not 0 < wanted <= there:
        raise ConfigError(
            f"a container of the limit {name}={wanted:g} does not fit: the engine's machine has "
            f"{there:g} {unit}; ask for less, or use a larger machine"
        )
