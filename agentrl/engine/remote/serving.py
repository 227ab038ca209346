"""An engine served by a process of its own, to whoever has the key, until it is told to end."""

import asyncio
import signal
from collections.abc import Callable

from agentrl.engine.remote.server import EngineServer
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError


def listening_place(text: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`; `ConfigError` for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ConfigError(f"--listen is {text!r}, expected HOST:PORT such as 127.0.0.1:7440")
    return host, int(port)


async def serve_until_told(
    recipe: EngineSpec,
    host: str,
    port: int,
    *,
    key: bytes,
    ready: Callable[[str], None],
) -> None:
    """Make the engine, listen, say where to `ready`, and end at SIGINT or SIGTERM.

    Raises `ConfigError` for an engine that cannot be had, or a place where nobody may listen.
    """
    import torch

    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_event.set)
    torch.set_num_threads(recipe.threads)
    async with recipe.open() as engine, EngineServer(engine, key=key) as server:
        try:
            bound = await server.listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error}; choose another --listen"
            ) from error
        ready(f"{host}:{bound}")
        await stop_event.wait()
