"""Ports for servers that tests start."""

import random
import socket

_DRAW = random.SystemRandom()


def free_port() -> int:
    """Return a port that nobody listens at, and that no connection is given for its own end: the
    kernel takes those from 32768 on."""
    while True:
        port = _DRAW.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
