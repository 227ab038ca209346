"""The process of an engine: `python -m agentrl.engine.remote FD RECIPE HOST`.

Without a host it serves its owner, who has the other end of the socket FD. With one it is told a
key there, listens at a port of that host, tells which, and serves whoever has the key. Either way
it ends as soon as its owner is gone.
"""

import asyncio
import os
import signal
import socket
import sys

import torch

from agentrl.engine.remote.frames import EngineFrame, FrameStreamClosed, read_greeting, write_frame
from agentrl.engine.remote.launch import CONFIG_ERROR, CONFIG_MARK
from agentrl.engine.remote.server import EngineServer
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError


async def serve(descriptor: int, recipe: EngineSpec, host: str) -> None:
    """Make the engine, and serve it until its owner is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    torch.set_num_threads(recipe.threads)
    if not host:
        async with recipe.open() as engine, EngineServer(engine) as server:
            await server.serve(reader, writer)
        return
    key = bytes.fromhex((await read_greeting(reader)).head["key"])
    async with recipe.open() as engine, EngineServer(engine, key=key) as server:
        write_frame(writer, EngineFrame({"port": await server.listen(host, 0)}))
        while await reader.read(1):
            pass


def main() -> None:
    """Read the arguments and serve."""
    # Ctrl-C in a terminal reaches us too, and it is our owner who says when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, recipe, host = sys.argv[1:]
    try:
        asyncio.run(serve(int(descriptor), EngineSpec.from_json(recipe), host))
    except FrameStreamClosed:
        pass
    except ConfigError as error:
        sys.stderr.write(f"{CONFIG_MARK}{error}\n")
        sys.stderr.flush()
        # Not `sys.exit`: half an engine may have threads that never end.
        os._exit(CONFIG_ERROR)


if __name__ == "__main__":
    main()
