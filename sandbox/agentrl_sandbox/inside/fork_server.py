"""The supervisor of one pool, a zygote: imports once, forks a keeper per opened session.

It reads frames from descriptor 0. The first one configures it; every other one is answered with the
socket of a new session. When the host closes its end, or dies, everything ends.
"""

import gc
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any, NoReturn

from agentrl_sandbox.inside import files, interpreter, kernel, processes, session_directory
from agentrl_sandbox.inside.frames import ChannelFrameReader, encode
from agentrl_sandbox.inside.quota import SessionLimits
from agentrl_sandbox.inside.session_init import SessionInit
from agentrl_sandbox.inside.users import SessionUsers

# What model-written code is likely to import: loaded once here, shared by every session.
PRELOADED = """
bisect collections copy csv dataclasses datetime decimal enum fractions functools hashlib
heapq io itertools json math operator pathlib random re statistics string subprocess
tempfile textwrap time typing unicodedata
"""
_QUIET_S = 0.003
"""Idle time before a session is made ahead: whoever waits comes first."""


class ForkServer:
    """Forks keepers and reaps them."""

    def __init__(self, control: socket.socket, settings: SessionLimits) -> None:
        self._control = control
        self._settings = settings
        self._selector = selectors.PollSelector()  # see session_init.py
        self._keepers: dict[int, int] = {}
        self._user_of: dict[int, int] = {}
        self._warm: dict[int, socket.socket] = {}
        """The host's ends of the sessions that are ready, oldest first, by their keepers."""
        self._wanted = 0
        """How many to keep ready: as many as were opened, up to the setting."""
        self._opened = 0
        self._users = SessionUsers.from_maps() if settings.isolated else SessionUsers(range(0))
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, reader: ChannelFrameReader) -> NoReturn:
        """Serve until the host closes the control socket."""
        self._selector.register(self._control, selectors.EVENT_READ, None)
        while True:
            short = len(self._warm) < self._wanted
            events = self._selector.select(_QUIET_S if short else None)
            if not events:
                try:
                    self._start()
                except OSError:
                    self._wanted = 0  # until somebody opens one, who is then told why it cannot be
            for key, _ in events:
                if key.data is not None:
                    self._reap(key.data)
                    continue
                data = self._control.recv(2**16)
                if not data:
                    self._leave()
                for frame in reader.feed(data):
                    self._open(frame.body["id"])

    def _open(self, request: int) -> None:
        """Give the host a session: its socket, where it greets, or already has."""
        self._wanted = min(self._wanted + 1, self._settings.warm)
        try:
            pid = next(iter(self._warm)) if self._warm else self._start()
        except OSError as error:
            self._tell(self._control, {"id": request, "error": f"no session: {error}"})
            return
        with self._warm.pop(pid) as link:
            try:
                fds = [link.fileno(), self._keepers[pid]]
                socket.send_fds(self._control, [encode({"id": request, "fds": len(fds)})], fds)
            except OSError as error:  # the host is gone, or leaves too many sockets unread
                self._tell(self._control, {"id": request, "error": f"no session: {error}"})

    def _start(self) -> int:
        """Fork a keeper, add it to those that are ready, and return its process id."""
        self._opened += 1
        user_id = self._users.take()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                if self._settings.isolated:
                    kernel.unshare(kernel.CLONE_NEWPID)  # the next child is the first of its own
                pid = kernel.fork()
                if pid == 0:
                    self._become_keeper(theirs, user_id)
            except OSError:
                ours.close()
                self._users.give_back(user_id)
                raise
            finally:
                if self._settings.isolated:
                    kernel.join(self._own_pids, kernel.CLONE_NEWPID)
        pidfd = os.pidfd_open(pid)
        self._keepers[pid] = pidfd
        self._user_of[pid] = user_id
        self._warm[pid] = ours
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        return pid

    def _become_keeper(self, link: socket.socket, user_id: int) -> NoReturn:
        try:
            os.closerange(3, link.fileno())
            os.closerange(link.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            SessionInit(link, prepare(self._settings, self._opened, user_id)).run()
        except BaseException as error:  # noqa: BLE001 - the last place that can say why
            traceback.print_exc()
            sys.stderr.flush()
            self._tell(link, {"id": 0, "refused": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(1)

    def _tell(self, link: socket.socket, body: dict[str, Any]) -> None:
        try:
            link.sendall(encode(body))
        except OSError:
            return

    def _reap(self, pid: int) -> None:
        pidfd = self._keepers.pop(pid)
        self._selector.unregister(pidfd)
        processes.wait_end(pid, pidfd)
        os.close(pidfd)
        self._users.give_back(self._user_of.pop(pid))
        if (link := self._warm.pop(pid, None)) is not None:
            link.close()
            self._wanted = 0  # whatever ended it may end the next one too
        if not self._settings.isolated:
            processes.end_strays(self._keepers)

    def _leave(self) -> NoReturn:
        """End the keepers. In a process namespace our own end is theirs."""
        if not self._settings.isolated:
            for link in self._warm.values():
                link.close()
            for pid, pidfd in self._keepers.items():
                # Each sees that the host is gone, and cleans up after itself.
                processes.poll_end(pidfd, within_s=processes.KILL_S)
                processes.kill(pid)
            processes.end_strays(())
            files.remove_tree(self._settings.root)
        os._exit(0)


def prepare(settings: SessionLimits, number: int, user_id: int) -> SessionLimits:
    """Make this process a keeper: its namespaces, its place for sessions, their user."""
    kernel.set_dumpable(False)
    if not settings.isolated:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.adopt_orphans(True)
        root = os.path.join(settings.root, f"keeper-{number}")
        os.mkdir(root, 0o700)
        return replace(settings, root=root)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET)
    session_directory.raise_loopback()
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", quiet)
    if user_id < 0:
        return settings
    # What we make for a session is its own from the start, and what it may not open, we may not
    # either: whatever the way we are led there. Everything else is done as ourselves.
    kernel.use_files_as(user_id)
    return replace(settings, user_id=user_id)


def main() -> None:
    """Read the configuration, import what sessions need, and serve."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # The kernel lets a process send descriptors while its user, whose sessions may leave many of
    # theirs unread, has fewer under way than that.
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    # Ctrl-C does not reach us, in a session of our own; what is forked from here starts like this.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    reader = ChannelFrameReader()
    settings = SessionLimits(**_receive_first(control, reader))
    if not settings.isolated:
        kernel.adopt_orphans(True)
    kernel.set_dumpable(False)
    for name in PRELOADED.split():
        __import__(name)
    interpreter.prepare()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, shared pages
    control.sendall(encode({"id": 0}))
    ForkServer(control, settings).run(reader)


def _receive_first(control: socket.socket, reader: ChannelFrameReader) -> dict[str, Any]:
    while data := control.recv(2**16):
        for frame in reader.feed(data):
            return frame.body
    os._exit(0)
