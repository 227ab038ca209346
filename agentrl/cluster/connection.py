"""The connection to Ray: found, begun, or left as it was."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.runtime.extras import install_command

if TYPE_CHECKING:
    from agentrl.config.cluster import ClusterSection

KNOCK_S = 10.0
"""Seconds within which a cluster's address must be reached."""


@contextmanager
def connect_ray(section: "ClusterSection") -> Generator[None]:
    """Be connected to Ray inside the block.

    Connects to `section.address`, or to that of `RAY_ADDRESS`, which a submitted job has, or starts
    Ray on this machine and ends it too, unless this process is connected already. `ConfigError`
    where Ray is not installed or cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"cluster.kind is 'ray', but Ray is not installed; {install_command('ray')}"
        ) from error
    if ray.is_initialized():
        yield
        return
    # Not in a thread: Ray's own processes end with the thread that started them.
    _connect(section.address or os.environ.get("RAY_ADDRESS"))
    try:
        yield
    finally:
        ray.shutdown()


def first_line(error: BaseException) -> str:
    """Return Ray's error message, without the traces it appends; of a call that raised in an actor,
    what it raised."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        return f"{type(error.cause).__name__}: {first_line(error.cause)}"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def find_address() -> tuple[str, str]:
    """Return the address of this machine, and its name in the cluster."""
    import ray
    from ray.util import get_node_ip_address

    return get_node_ip_address(), ray.get_runtime_context().get_node_id()


def _knock(address: str | None) -> None:
    """Raise `OSError` where nobody listens: Ray itself would wait for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def _connect(address: str | None) -> None:
    import ray

    try:
        _knock(address)
        ray.init(
            # Without one, Ray would join whatever cluster it finds on this machine.
            address=address or "local",
            log_to_driver=False,
            include_dashboard=False if address is None else None,
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at cluster.address = {address!r}: {error}; start one with "
            "`ray start --head`, or remove the address to start one on this machine"
        ) from error
