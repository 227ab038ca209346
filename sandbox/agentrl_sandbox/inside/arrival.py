"""Handover from the host to the first process of a container: descriptors and users."""

import os
import socket
import sys

from agentrl_sandbox.inside import kernel

_HANDSHAKE_S = 30.0
_FDS = 2
YES, NO = b"y", b"n"
"""Answers of the host on mapping users: with the descriptors, and in the end."""


def arrive(address: str) -> None:
    """Take standard input and error from a socket, and enter a user namespace of our own."""
    with socket.socket(socket.AF_UNIX) as host:
        host.settimeout(_HANDSHAKE_S)
        host.connect(address)
        maps = _take_descriptors(host)
        kernel.enter_user_namespace(mapped=lambda: maps and _ask_for_a_map(host))


def _take_descriptors(host: socket.socket) -> bool:
    """Return whether the host is about to map users for us, too."""
    word, fds, _, _ = socket.recv_fds(host, 1, _FDS)
    if len(fds) != _FDS:
        sys.exit("the host did not send its file descriptors")
    for place, fd in zip((0, 2), fds, strict=True):
        os.dup2(fd, place)
        os.close(fd)
    return word == YES


def _ask_for_a_map(host: socket.socket) -> bool:
    host.sendall(YES)
    return host.recv(1) == YES
