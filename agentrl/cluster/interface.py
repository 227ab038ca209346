"""Network interface of this machine that the others of a cluster reach."""

import fcntl
import os
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress

SIOCGIFADDR = 0x8915
"""Asks Linux for the address of an interface (`netdevice(7)`)."""
NAME_BYTES = 15
VARIABLE = "GLOO_SOCKET_IFNAME"


def interface_of(address: str) -> str | None:
    """Return the name of the interface with an IPv4 address, None where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:NAME_BYTES])
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking, SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


@contextmanager
def listen_at(address: str) -> Generator[None]:
    """Have Gloo listen at this machine's address inside the block, unless the variable says where.

    It would listen where the machine's own name leads, which often is the loopback interface.
    """
    name = None if VARIABLE in os.environ else interface_of(address)
    if name is None:
        yield
        return
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
