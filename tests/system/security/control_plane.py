"""What must not be reached from a page: real servers on this machine's loopback that take notes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class ControlPlane:
    """An HTTP port and a UDP port, and what came in."""

    port: int = 0
    udp_port: int = 0
    hits: list[str] = field(default_factory=list[str])
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Return where it is."""
        return f"http://127.0.0.1:{self.port}"


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.plane.hits.append(f"UDP {data[:8]!r}")


@asynccontextmanager
async def control_plane() -> AsyncGenerator[ControlPlane]:
    """Listen until the block ends."""
    plane = ControlPlane()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        plane.hits.append(line.decode(errors="replace").strip())
        plane.came.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    plane.port = server.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(plane), ("127.0.0.1", 0)
    )
    plane.udp_port = transport.get_extra_info("sockname")[1]
    try:
        yield plane
    finally:
        transport.close()
        server.close()
        await server.wait_closed()
