"""The process of a `ProcessEngine`: `python -m agentrl.engine.remote FD RECIPE`."""

import asyncio
import os
import signal
import socket
import sys

import torch

from agentrl.engine.recipe import EngineRecipe
from agentrl.engine.remote.process import CONFIG_ERROR, CONFIG_MARK
from agentrl.engine.remote.server import EngineServer
from agentrl.errors import ConfigError


async def serve(descriptor: int, recipe: EngineRecipe) -> None:
    """Make the engine, and serve it until its owner is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    torch.set_num_threads(recipe.threads)
    async with recipe.open() as engine, EngineServer(engine) as server:
        await server.serve(reader, writer)


def main() -> None:
    """Read the arguments and serve."""
    # Ctrl-C in a terminal reaches us too, and it is our owner who says when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, recipe = sys.argv[1:]
    try:
        asyncio.run(serve(int(descriptor), EngineRecipe.of_json(recipe)))
    except ConfigError as error:
        sys.stderr.write(f"{CONFIG_MARK}{error}\n")
        sys.stderr.flush()
        # Not `sys.exit`: half an engine may have threads that never end.
        os._exit(CONFIG_ERROR)


if __name__ == "__main__":
    main()
