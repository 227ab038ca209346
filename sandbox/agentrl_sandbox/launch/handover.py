"""Descriptors for the first process of a container, over a socket in a directory of its own."""

import os
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.enter import write_map
from agentrl_sandbox.inside.arrival import NO, YES
from agentrl_sandbox.launch.container import ARCHIVE, SOCKET
from agentrl_sandbox.launch.users import NamespaceUsers
from agentrl_sandbox.lease import ResourceLease, new_mark

CONNECT_S = 30.0
"""Deadline for a running container to connect."""
_LOOK_S = 0.1
_CREDENTIALS = struct.Struct("3i")


class HandoverFolder:
    """A container's directory on the host: the files it runs and the socket it connects to."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        """`files` by name, read-only for all; without them the archive of a supervisor."""
        self._files = files or {ARCHIVE: bundle("container", portable=True)}
        self.path = f"{tempfile.gettempdir()}/agentrl-container-{new_mark()}"
        self._lease = ResourceLease.take("directory", self.path)
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._make()
        except BaseException:
            self.remove()
            raise

    def _make(self) -> None:
        os.mkdir(self.path)
        # Reached by a user that is nobody here; who connects is checked by process id.
        os.chmod(self.path, 0o711)
        for name, data in self._files.items():
            file = Path(self.path, name)
            file.write_bytes(data)
            file.chmod(0o444)
        directory = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        try:  # the whole path may be longer than an address of a socket
            self._listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        finally:
            os.close(directory)
        Path(self.path, SOCKET).chmod(0o666)
        self._listener.listen(1)
        self._listener.setblocking(False)

    def hand_over(
        self,
        pid: int,
        pidfd: int,
        fds: Sequence[int],
        stop: threading.Event,
        users: NamespaceUsers | None = None,
    ) -> None:
        """Give descriptors to the process `pid`, which connects, and to nobody else who does.

        With `users` these are mapped in the user namespace that the process makes, where the
        kernel permits it. Then nobody can connect any more. `SandboxError` when it ends before
        that, does not connect within `CONNECT_S`, or `stop` is set.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        deadline_s = time.monotonic() + CONNECT_S
        while time.monotonic() < deadline_s:
            ready = {fd for fd, _ in poll.poll(_LOOK_S * 1000)}
            if self._listener.fileno() in ready:
                if self._serve(pid, fds, users):
                    return
            elif pidfd in ready:
                raise SandboxError("it ended before it connected")
            if stop.is_set():
                raise SandboxError("the host stopped waiting for it")
        raise SandboxError(f"it did not connect within {CONNECT_S:g} s")

    def _serve(self, pid: int, fds: Sequence[int], users: NamespaceUsers | None) -> bool:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:  # who came has gone
            return False
        with peer:
            size = _CREDENTIALS.size
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            if _CREDENTIALS.unpack(credentials)[0] != pid:
                return False
            try:
                socket.send_fds(peer, [NO if users is None else YES], fds)
                if users is not None:
                    peer.settimeout(CONNECT_S)
                    peer.recv(1)  # its namespace is there
                    maps = (("uid", users.uid), ("gid", users.gid))
                    mapped = all(write_map(pid, kind, extents) for kind, extents in maps)
                    peer.sendall(YES if mapped else NO)
            except OSError as error:
                raise SandboxError(f"it ended while it connected: {error}") from error
        self._listener.close()
        Path(self.path, SOCKET).unlink()
        return True

    def remove(self) -> None:
        """Delete everything. Idempotent."""
        self._listener.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._lease.release()
