"""Output of a command: read until it ends, is late or is given up, however much it writes."""

import os
import selectors
import subprocess
import threading
import time
from typing import IO

from agentrl.sandbox_provider import ContainerOutput

_READ_BYTES = 2**16
_POLL_S = 0.1


def read_output(
    process: subprocess.Popen[bytes], *, deadline_s: float, max_bytes: int, stop: threading.Event
) -> ContainerOutput:
    """Return the end of a process, and the beginning of its output.

    It is killed at its deadline, and where the event is set. Others may hold its output open: it is
    read for as long as the process lives.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    streams = (process.stdout, process.stderr)
    outputs = {stream.fileno(): bytearray() for stream in streams}
    truncated, code = False, None
    end_fd = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(end_fd, selectors.EVENT_READ)
            for stream in streams:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream.fileno(), selectors.EVENT_READ)
            has_ended = False
            while not stop.is_set():
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    break
                wait_s = 0.0 if has_ended else min(deadline_s - now_s, _POLL_S)
                ready = [key.fd for key, _ in selector.select(wait_s)]
                if has_ended and not ready:
                    break
                for fd in ready:
                    if fd == end_fd:
                        has_ended = True
                        selector.unregister(fd)
                        continue
                    data = os.read(fd, _READ_BYTES)
                    if not data:
                        selector.unregister(fd)
                        continue
                    room = max_bytes - len(outputs[fd])
                    outputs[fd] += data[:room]
                    truncated = truncated or len(data) > room
            if has_ended:
                code = process.wait()
    finally:
        os.close(end_fd)
        if code is None:
            process.kill()
            process.wait()
        _close(streams)
    stdout, stderr = (bytes(output) for output in outputs.values())
    return ContainerOutput(exit_code=code, stdout=stdout, stderr=stderr, truncated=truncated)


def _close(streams: tuple[IO[bytes], ...]) -> None:
    for stream in streams:
        stream.close()
