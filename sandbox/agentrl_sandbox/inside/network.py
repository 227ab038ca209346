"""The network of one session: a loopback device, and nothing else."""

import fcntl
import socket
import struct

_SET_FLAGS = 0x8914
_REQUEST = struct.Struct("16sh22x")
_UP = 1


def raise_loopback() -> None:
    """Switch on the loopback device of this process's network namespace, which we must own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, _REQUEST.pack(b"lo", _UP))
