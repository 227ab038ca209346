"""The stdio transport of MCP over a leased process: one JSON-RPC message per line, both ways."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from agentrl_sandbox.host_process import HostProcess, LineTooLong

if TYPE_CHECKING:
    from mcp.client import Transport


@asynccontextmanager
async def lines_of(process: HostProcess, broke: Callable[[str], None]) -> AsyncGenerator[Any]:
    """Yield the message streams of a server; the process is its opener's to close.

    A line that is no message is left out: servers greet. The stream ends with the process's output,
    and after a line longer than the process may write; `broke` is told why.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    heard_in, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, said_out = anyio.create_memory_object_stream[SessionMessage](0)

    async def hear() -> None:
        try:
            while (line := await process.read()) is not None:
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue
                await heard_in.send(SessionMessage(message))
            broke("its output has ended")
        except LineTooLong as error:
            broke(f"it wrote {error}")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            broke("it was disconnected")
        heard_in.close()

    async def say() -> None:
        try:
            async for message in said_out:
                sent = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(sent.encode())
        except OSError as error:
            # Nobody may wait for an answer to what could not be said.
            broke(f"it no longer reads its input ({error})")
            heard_in.close()

    tasks = [asyncio.create_task(work(), name="agentrl-mcp-stdio") for work in (hear, say)]
    try:
        yield read_stream, write_stream
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (read_stream, heard_in, write_stream, said_out):
            stream.close()


def transport_of(process: HostProcess, broke: Callable[[str], None]) -> "Transport":
    """Return the transport that an MCP client connects to."""
    return lines_of(process, broke)  # pyright: ignore[reportReturnType]
