"""A real MCP server for tests, run as a program: `mcp_server.py stdio LOG` or `... PORT LOG`.

LOG gets a line when a tool begins, when one is cancelled, and when the server starts.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test server")
log = Path(sys.argv[2])
total = 0
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


def note(text: str) -> None:
    with log.open("a") as file:
        file.write(f"{text}\n")


@server.tool()
def add(amount: int) -> str:
    """Add to the total and say it."""
    global total
    total += amount
    return f"the total is {total}"


@server.tool()
def refuse(why: str) -> str:
    """Refuse."""
    raise ToolError(why)


@server.tool()
async def hang() -> str:
    """Never answer."""
    note("hang began")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note("hang cancelled")
        raise
    return "awake"


@server.tool()
def crash() -> str:
    """End the server."""
    sys.stderr.write("out of cheese\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def huge(size: int) -> str:
    """Say much."""
    return "x" * size


@server.tool()
def garbage() -> str:
    """Write what is no message, then answer."""
    os.write(1, b"this is no JSON\n\xff\xfe\n{}\n[1, 2]\n")
    return "said"


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Return text and an image."""
    return ["a picture:", Image(data=PIXEL, format="png")]


@server.tool()
def structured() -> dict[str, int]:
    """Return an object."""
    return {"answer": 42}


@server.tool()
def environment() -> str:
    """Return the names of all variables."""
    return " ".join(sorted(os.environ))


@server.tool(name="close")
def named_close(self: str) -> str:
    """Have the name of a hook, and an argument called self."""
    return f"closed {self}"


@server.tool(name="dots.and/slashes")
def dots() -> str:
    """Have a name that no model may write."""
    return "dotted"


@server.tool()
def process() -> int:
    """Return the server's process id."""
    return os.getpid()


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
