"""The stdio transport of MCP over a leased process: one JSON-RPC message per line, both ways."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentrl_sandbox.host_process import HostProcess, LineTooLong


@asynccontextmanager
async def open_transport(
    process: HostProcess, on_break: Callable[[str], None]
) -> AsyncGenerator[Any]:
    """Yield the message streams of a server; the process is its opener's to close.

    A line that is no message is left out: servers greet. The stream ends with the process's output,
    and after a line longer than the process may write; `on_break` is told why.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    messages_in, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, messages_out = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        try:
            while (line := await process.read()) is not None:
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue
                await messages_in.send(SessionMessage(message))
            on_break("its output has ended")
        except LineTooLong as error:
            on_break(f"it wrote {error}")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            on_break("it was disconnected")
        messages_in.close()

    async def send() -> None:
        try:
            async for message in messages_out:
                sent = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(sent.encode())
        except OSError as error:
            # Nobody may wait for an answer to what could not be said.
            on_break(f"it no longer reads its input ({error})")
            messages_in.close()

    tasks = [asyncio.create_task(work(), name="agentrl-mcp-stdio") for work in (receive, send)]
    try:
        yield read_stream, write_stream
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (read_stream, messages_in, write_stream, messages_out):
            stream.close()
