"""What goes over a socket, and how often the loop is told to look at it.

Mutants seen caught: `remove_writer` after every message; never `remove_writer`.
"""

import asyncio
import socket
from collections.abc import Callable

import pytest

from agentrl_sandbox.control_channel import SocketWriter


async def test_a_loop_watches_a_socket_only_while_it_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, calls = asyncio.get_running_loop(), list[str]()
    add, remove = loop.add_writer, loop.remove_writer

    def add_writer(fd: int, callback: Callable[[], None]) -> None:
        calls.append("add")
        add(fd, callback)

    def remove_writer(fd: int) -> bool:
        calls.append("remove")
        return remove(fd)

    monkeypatch.setattr(loop, "add_writer", add_writer)
    monkeypatch.setattr(loop, "remove_writer", remove_writer)
    end, other = socket.socketpair()
    with end, other:
        writer = SocketWriter(end, lambda error: pytest.fail(str(error)))
        for number in range(3):
            writer.send(b"%d" % number)
        assert other.recv(9) == b"012"
        assert calls == []
        whole = bytes(range(256)) * 2**14
        writer.send(whole)
        assert calls == ["add"]
        other.setblocking(False)
        received = b""
        while len(received) < len(whole):
            received += await loop.sock_recv(other, 2**20)
        await asyncio.sleep(0)
        assert received == whole
        assert calls == ["add", "remove"]
