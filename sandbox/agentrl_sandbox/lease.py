"""Leases on what this process holds outside its memory, so that it is removed when we cannot.

    with ResourceLease.take("directory", f"/tmp/agentrl-sandbox-{new_mark()}") as lease:
        os.mkdir(lease.name)        # a kill -9 from here on: a reaper deletes it
        ...
        remove_tree(lease.name)     # gone first, forgotten after

A lease is taken before its resource is made and released when the resource is gone. The first one
starts a reaper, and so does the next one after a reaper was killed. A process forked from this one
holds nothing; its own first lease makes it an owner.
"""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.run_id import run_id
from agentrl_sandbox.reaping import record, remove
from agentrl_sandbox.reaping.owner import LeaseOwner
from agentrl_sandbox.reaping.plan import Kind, LeasedResource

LABEL_RUN, LABEL_POOL, LABEL_OWNER = "agentrl.run", "agentrl.pool", "agentrl.owner"
_LOCK_S = 5.0
_START_S = 30.0
# The packages are below this file, but importing them by their name would import agentrl with all
# it brings; an empty parent package in its place keeps the reaper small.
_REAPER = """
import sys, types
parent = types.ModuleType("agentrl_sandbox")
parent.__path__ = [sys.argv.pop(1)]
sys.modules["agentrl_sandbox"] = parent
from agentrl_sandbox.reaping.reaper import main
main()
"""


def new_mark() -> str:
    """Return a fresh name with this process in it: for a pool, a directory, a cgroup, a process.

    By it, `agentrl gc` knows whose a thing is when no lease tells.
    """
    return f"{LeaseOwner.current().text}-{os.urandom(4).hex()}"


def labels(pool: str) -> dict[str, str]:
    """Return the labels of a container of a pool; `agentrl.pool=POOL` is what a lease names."""
    return {LABEL_RUN: run_id(), LABEL_POOL: pool, LABEL_OWNER: LeaseOwner.current().text}


class ResourceLease:
    """One resource that this process holds. Made by `take`."""

    def __init__(self, resource: LeasedResource, path: Path) -> None:
        self._resource = resource
        self._path = path
        self._pid = os.getpid()
        self._held = True

    @classmethod
    def take(cls, kind: Kind, name: str, *, engine: str = "") -> Self:
        """Write down that we are about to make something; it takes 0.1 ms, the first one 50 ms.

        `name` is a label `key=value` of containers, with their engine's socket; the absolute path
        of a directory or cgroup, whose last part begins with `agentrl-`; or the mark of processes,
        which they carry in their environment (`environ`). `ConfigError` when there is no place for
        leases that nobody else can write to; `SandboxError` when no reaper can be started.
        """
        resource = LeasedResource(kind, name, engine)
        return cls(resource, _get_holder().add(resource))

    @property
    def name(self) -> str:
        """Name that was given to `take`."""
        return self._resource.name

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables that the environment of leased processes has to hold."""
        return {remove.MARK: self._resource.name}

    def release(self) -> None:
        """Forget the resource, which is gone. Idempotent; nothing in a forked process."""
        if self._held and self._pid == os.getpid():
            self._held = False
            _get_holder().drop(self._path)

    def clear(self) -> None:
        """Remove whatever is left of the resource, then release it. It blocks, for seconds at most.

        `SandboxError` when something stays; the lease stays too, and the reaper goes on.
        """
        if not self._held or self._pid != os.getpid():
            return
        try:
            remove.remove(self._resource)
        except OSError as error:
            raise SandboxError(f"{self._resource.kind} {self.name} remains: {error}") from error
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class _Holder:
    """This process as an owner: its folder, and the folder's lock while it holds anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder_fd = -1
        self._leases = 0
        self._directory = record.state_directory()
        self._folder = self._directory / LeaseOwner.current().text

    def add(self, resource: LeasedResource) -> Path:
        with self._lock:
            try:
                self._make_folder()
                self._start_reaper()
                path = record.write(self._folder, os.urandom(8).hex(), resource, run_id())
                self._leases += 1
            except record.StateError as error:
                raise ConfigError(str(error)) from error
            except OSError as error:
                raise ConfigError(
                    f"{self._folder}: {error.strerror}; leases of sandbox resources are recorded "
                    f"there: free some space, or set {record.VARIABLE} to another directory"
                ) from error
            finally:
                if self._leases == 0:
                    self.unlock()
            return path

    def drop(self, path: Path) -> None:
        with self._lock:
            path.unlink(missing_ok=True)
            self._leases -= 1
            if self._leases == 0:
                self.unlock()

    def _make_folder(self) -> None:
        """Have the folder, and its lock: the kernel drops it when this process ends."""
        deadline_s = time.monotonic() + _LOCK_S
        while self._folder_fd < 0 or not _is_same(self._folder_fd, self._folder):
            record.check_directory(self._directory, make=True)
            self.unlock()
            with suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Somebody asks at this moment whether we hold it.
                self.unlock()
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.001)

    def unlock(self) -> None:
        """Let go of the lock; in a forked child it stays our parent's."""
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1

    def _start_reaper(self) -> None:
        """Have a reaper wait for us. The lock it inherits says so, from before it runs."""
        lock = os.open(self._folder / record.REAPER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            _spawn_reaper(self._folder, lock)
        finally:
            os.close(lock)


def _spawn_reaper(folder: Path, lock: int) -> None:
    me = os.pidfd_open(os.getpid())
    package = str(Path(__file__).parent)
    options = ["-I", "-S", "-X", "utf8", "-c", _REAPER]
    try:
        result = subprocess.run(
            [sys.executable, *options, package, str(folder), str(me), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(me, lock),
            start_new_session=True,
            timeout=_START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"the reaper of this process could not be started: {error}") from error
    finally:
        os.close(me)
    if result.returncode != 0:
        why = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the reaper of this process could not be started: {why}")


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


_holders: dict[int, _Holder] = {}


def _get_holder() -> _Holder:
    """Return the holder of this process, never that of its parent."""
    return _holders.setdefault(os.getpid(), _Holder())


def _forget_holders() -> None:
    for holder in _holders.values():
        holder.unlock()
    _holders.clear()


os.register_at_fork(after_in_child=_forget_holders)
