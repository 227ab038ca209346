"""The supervisor of one pool, a zygote: imports once, forks a keeper per opened session.

It reads frames from descriptor 0. The first one configures it; every other one comes with the
socket of a new session. When the host closes its end, or dies, everything ends.
"""

import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any, NoReturn

from agentrl_sandbox.inside import files, interpreter, kernel, processes
from agentrl_sandbox.inside.frames import Reader, encode
from agentrl_sandbox.inside.keeper import Keeper
from agentrl_sandbox.inside.state import Settings

# What model-written code is likely to import: loaded once here, shared by every session.
PRELOADED = """
bisect collections copy csv dataclasses datetime decimal enum fractions functools hashlib
heapq io itertools json math operator pathlib random re statistics string subprocess
tempfile textwrap time typing unicodedata
"""
_SOCKETS_MAX = 16


class Supervisor:
    """Forks keepers and reaps them."""

    def __init__(self, control: socket.socket, settings: Settings) -> None:
        self._control = control
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._keepers: dict[int, int] = {}
        self._opened = 0
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, reader: Reader) -> NoReturn:
        """Serve until the host closes the control socket."""
        self._selector.register(self._control, selectors.EVENT_READ, None)
        sockets: list[int] = []
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.data)
                    continue
                data, fds, _, _ = socket.recv_fds(self._control, 2**16, _SOCKETS_MAX)
                if not data:
                    self._leave()
                sockets += fds
                for _frame in reader.feed(data):
                    self._open(sockets.pop(0))

    def _open(self, link_fd: int) -> None:
        self._opened += 1
        if self._settings.isolated:
            kernel.unshare(kernel.CLONE_NEWPID)  # the next child is the first process of its own
        pid = kernel.fork()
        if pid == 0:
            self._become_keeper(socket.socket(fileno=link_fd))
        if self._settings.isolated:
            kernel.join(self._own_pids, kernel.CLONE_NEWPID)
        os.close(link_fd)
        pidfd = os.pidfd_open(pid)
        self._keepers[pid] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, pid)

    def _become_keeper(self, link: socket.socket) -> NoReturn:
        try:
            os.closerange(3, link.fileno())
            os.closerange(link.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            Keeper(link, prepare(self._settings, self._opened)).run()
        except BaseException as error:  # noqa: BLE001 - the last place that can say why
            traceback.print_exc()
            sys.stderr.flush()
            self._tell(link, error)
        finally:
            os._exit(1)

    def _tell(self, link: socket.socket, error: BaseException) -> None:
        try:
            link.sendall(encode({"id": 0, "refused": f"{type(error).__name__}: {error}"}))
        except OSError:
            return

    def _reap(self, pid: int) -> None:
        pidfd = self._keepers.pop(pid)
        self._selector.unregister(pidfd)
        processes.wait_end(pid, pidfd)
        os.close(pidfd)
        if not self._settings.isolated:
            processes.end_strays(self._keepers)

    def _leave(self) -> NoReturn:
        """End the keepers. In a process namespace our own end is theirs."""
        if not self._settings.isolated:
            for pid, pidfd in self._keepers.items():
                # Each sees that the host is gone, and cleans up after itself.
                processes.ended(pidfd, within_s=processes.KILL_S)
                processes.kill(pid)
            processes.end_strays(())
            files.remove_tree(self._settings.root)
        os._exit(0)


def prepare(settings: Settings, number: int) -> Settings:
    """Make this process a keeper: its namespaces, its place for sessions."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.set_dumpable(False)
    if not settings.isolated:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.adopt_orphans(True)
        root = os.path.join(settings.root, f"keeper-{number}")
        os.mkdir(root, 0o700)
        return replace(settings, root=root)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", "/proc", "proc", quiet | kernel.MS_NOEXEC)
    kernel.mount("sessions", settings.root, "tmpfs", quiet, "size=64k,mode=755,nr_inodes=1024")
    return settings


def main() -> None:
    """Read the configuration, import what sessions need, and serve."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which then closes us
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    reader = Reader()
    settings = Settings(**_first(control, reader))
    if not settings.isolated:
        kernel.adopt_orphans(True)
    kernel.set_dumpable(False)
    for name in PRELOADED.split():
        __import__(name)
    interpreter.prepare()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, shared pages
    control.sendall(encode({"ready": True}))
    Supervisor(control, settings).run(reader)


def _first(control: socket.socket, reader: Reader) -> dict[str, Any]:
    while data := control.recv(2**16):
        for frame in reader.feed(data):
            return frame.body
    os._exit(0)
