"""A container without an engine: its keeper, its first process, and the files that it changed."""

import json
import os
import platform
import secrets
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.threads import finish_in_thread, run_in_stoppable_thread, run_in_thread
from agentrl.sandbox_provider import ContainerOutput, ContainerSpec, FileChange
from agentrl_sandbox.cgroup import CgroupLimits, CgroupRoot, ProcessCgroup, explain_no_cgroups
from agentrl_sandbox.contain import visit
from agentrl_sandbox.inside import seccomp
from agentrl_sandbox.lease import ResourceLease
from agentrl_sandbox.provider.namespaces.command_output import read_output
from agentrl_sandbox.provider.namespaces.layer_cache import HeldImage, make_folder
from agentrl_sandbox.provider.namespaces.layer_changes import find_changes

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MARK = "AGENTRL_EXEC"
_KILL_S = 20.0
_ANSWER_S = 60.0
_ARCHIVE_S = 180.0
_POLL_S = 0.1
_SHOWN_CHARACTERS = 500
_START = """
import importlib, sys, types
parent = types.ModuleType("agentrl_sandbox")
parent.__path__ = [sys.argv.pop(1)]
sys.modules["agentrl_sandbox"] = parent
importlib.import_module(sys.argv.pop(1)).main()
"""


class NamespaceContainer:
    """A running container; it owns its processes, its cgroup, its folder and a hold of its image.

    Args:
        image: Image whose layers are below its files.
        spec: Variables and limits.
        place: Path of its folder, which is made.
        first_id: First id of its users here.
        max_bytes: Length of stdout and of stderr of a command that is kept.
        shares_network: Whether it is in the network of this machine, as builds may be.
    """

    started_by: Sequence[str] = ()

    def __init__(
        self,
        image: HeldImage,
        spec: ContainerSpec,
        *,
        place: Path,
        first_id: int,
        max_bytes: int,
        shares_network: bool = False,
    ) -> None:
        self._image, self._spec = image, spec
        self._first_id, self._max_bytes = first_id, max_bytes
        self._shares_network = shares_network
        self.folder = place
        self._is_stopped = False
        self._keeper: subprocess.Popen[bytes] | None = None
        self._init_fd = -1
        self._group: ProcessCgroup | None = None
        self._lease = ResourceLease.take("directory", str(place))

    @property
    def upper(self) -> Path:
        """Layer of what it changed."""
        return self.folder / "upper"

    @property
    def is_stopped(self) -> bool:
        """Whether it was removed, or is left to the reaper."""
        return self._is_stopped

    def make(self) -> None:
        """Make and start it; it blocks."""
        try:
            make_folder(self.folder, self._first_id)
            for name in ("upper", "work"):
                make_folder(self.folder / name, self._first_id)
        except OSError as error:
            raise SandboxError(f"the container {self.folder} cannot be made: {error}") from error
        self._group = self._make_group()
        plan = {
            "lower": [str(place) for place in self._image.places],
            "files": str(self.folder),
            "first_id": self._first_id,
            "shares_network": self._shares_network,
            "filter": _get_filter(),
        }
        self._keeper = _open_program("keeper", plan, stdin=subprocess.PIPE)
        self._read_answer()
        self._start()

    def _make_group(self) -> ProcessCgroup:
        limits = self._spec.limits
        bounds = CgroupLimits(
            memory_bytes=limits.memory_bytes, processes=limits.processes, cpus=limits.cpus
        )
        cgroups = CgroupRoot.find()
        try:
            if cgroups is None:
                raise OSError(explain_no_cgroups())
            return cgroups.make("container", bounds)
        except OSError as error:
            raise ConfigError(f"a container's limits cannot be had here: {error}") from error

    def _read_answer(self) -> str:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._keeper.stdout, selectors.EVENT_READ)
            line = self._keeper.stdout.readline() if selector.select(_ANSWER_S) else b""
        if not line:
            self._keeper.kill()
            why = self._keeper.stderr.read().decode(errors="replace").strip()
            raise SandboxError(
                f"the container {self.folder.name} did not start: "
                f"{why or f'no answer in {_ANSWER_S:g} s'}"
            )
        return line.decode().strip()

    def _start(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(b"start\n")
            self._keeper.stdin.flush()
        except OSError as error:
            raise SandboxError(f"the container {self.folder.name} is gone: {error}") from error
        pid = int(self._read_answer())
        assert self._group is not None
        try:
            self._init_fd = os.pidfd_open(pid)
            self._group.add(pid)
        except ProcessLookupError as error:
            raise SandboxError(f"the container {self.folder.name} ended at once") from error

    def discard(self) -> None:
        """End it and remove its files; it blocks. What stays then is left to the reaper."""
        self._is_stopped = True
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None:
                keeper.kill()
                keeper.wait()
                for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
                    if stream is not None:
                        with suppress(OSError):
                            stream.close()
            self._close_init()
            if self._group is not None and not self._group.remove():
                raise SandboxError(f"processes of the container {self.folder.name} remain")
            self._group = None
            self._lease.clear()
        finally:
            self._image.release()

    def _close_init(self) -> None:
        if self._init_fd >= 0:
            os.close(self._init_fd)
            self._init_fd = -1

    def _check_alive(self) -> None:
        if self._is_stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        if self._init_fd < 0 or _is_readable(self._init_fd):
            raise SandboxError(f"the container {self.folder.name} does not run")

    # -- commands -----------------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ContainerOutput:
        """Run a command; see `ProviderContainer`."""
        self._check_alive()
        assert self._group is not None
        mark, image = secrets.token_hex(8), self._image.image
        plan = {
            "action": "exec",
            "cgroups": self._group.join_files(),
            "argv": list(argv),
            "cwd": cwd or image.workdir,
            "env": {"PATH": _PATH, **image.env, **self._spec.env, **(env or {}), _MARK: mark},
            "user": user or image.user,
            "filter": _get_filter(),
        }
        deadline_s = time.monotonic() + timeout_s
        has_ended = False

        def run(stop: threading.Event) -> ContainerOutput:
            return self._run(plan, deadline_s, stop)

        try:
            output = await run_in_stoppable_thread(run)
            has_ended = output.exit_code is not None
        finally:
            if not has_ended:
                await finish_in_thread(self._kill_marked, f"{_MARK}={mark}".encode())
        if output.exit_code:
            self._check_alive()
        return output

    def _run(
        self, plan: Mapping[str, Any], deadline_s: float, stop: threading.Event
    ) -> ContainerOutput:
        init_fd = os.dup(self._init_fd)
        try:
            visitor = _open_program(
                "visit", {**plan, "init": init_fd}, stdin=subprocess.DEVNULL, shared_fds=(init_fd,)
            )
        finally:
            os.close(init_fd)
        return read_output(visitor, deadline_s=deadline_s, max_bytes=self._max_bytes, stop=stop)

    def _kill_marked(self, mark: bytes) -> None:
        """End the processes of the container whose environment has a variable."""
        group, deadline_s = self._group, time.monotonic() + _KILL_S
        while group is not None and time.monotonic() < deadline_s:
            pids = [pid for pid in group.pids() if mark in _read_environ(pid)]
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    # -- files --------------------------------------------------------------------------------

    async def put(self, archive: bytes, directory: str = "/") -> None:
        """Unpack a tar archive; see `ProviderContainer`."""
        await self._put(directory, archive)

    async def put_file(self, archive: Path) -> None:
        """Unpack a tar archive that lies on this machine."""
        with await run_in_thread(archive.open, "rb") as file:
            await self._put("/", file)

    async def _put(self, directory: str, archive: bytes | IO[bytes]) -> None:
        code, _, errors = await self._visit({"action": "put", "path": directory}, archive)
        if code == visit.NO_FOLDER:
            raise SandboxError(f"{directory} is no directory of the container")
        if code:
            raise SandboxError(f"an archive was not put into {directory}: {errors}")

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive; see `ProviderContainer`."""
        plan = {"action": "get", "path": path, "max_bytes": max_bytes}
        code, archive, errors = await self._visit(plan, b"")
        if code == visit.NOT_FOUND:
            raise FileNotFoundError(path)
        if code == visit.TOO_LARGE:
            raise OSError(f"{path} takes more than {max_bytes} bytes as an archive")
        if code:
            raise SandboxError(f"{path} was not read: {errors}")
        return archive

    async def _visit(
        self, plan: Mapping[str, Any], data: bytes | IO[bytes]
    ) -> tuple[int, bytes, str]:
        keeper = self._keeper
        if self._is_stopped or keeper is None or keeper.poll() is not None:
            raise SandboxError(f"the container {self.folder.name} is gone")
        keeper_plan = {**plan, "keeper": keeper.pid}
        return await run_in_stoppable_thread(lambda stop: _run_visitor(keeper_plan, data, stop))

    # -- the whole of it ----------------------------------------------------------------------

    async def halt(self) -> None:
        """End every process; see `ProviderContainer`."""
        try:
            self._check_alive()
        except SandboxError as error:
            raise SandboxError(f"{error}: it ended while it was in use") from error
        await run_in_thread(self._kill_all)

    def _kill_all(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
        deadline_s = time.monotonic() + _KILL_S
        # The kernel lets go of the first process after every other one.
        while not _is_readable(self._init_fd) or (self._group is not None and self._group.pids()):
            if time.monotonic() > deadline_s:
                raise SandboxError(f"processes of {self.folder.name} survived SIGKILL")
            time.sleep(0.005)
        self._close_init()

    async def changes(self) -> Sequence[FileChange]:
        """Return the paths that differ from the image; see `ProviderContainer`."""
        if self._is_stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        try:
            return await run_in_thread(find_changes, self.upper, self._image.places)
        except OSError as error:
            raise SandboxError(
                f"the changes of the container {self.folder.name} cannot be read: {error}"
            ) from error

    async def resume(self) -> None:
        """Start it again; see `ProviderContainer`."""
        if self._is_stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        await run_in_thread(self._start)

    async def stop(self) -> None:
        """Remove it; see `ProviderContainer`."""
        if not self._is_stopped:
            await finish_in_thread(self.discard)


def _get_filter() -> str:
    """Return the filter of system calls of everything inside, in hexadecimal digits."""
    if (program := seccomp.build(in_container=True)) is None:
        raise ConfigError(f"there is no filter of system calls for {platform.machine()}")
    return program.hex()


def _open_program(
    module: str,
    plan: Mapping[str, Any],
    *,
    stdin: int | IO[bytes],
    shared_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a program of `contain`, whose plan no other user reads and no length bounds."""
    package, name = str(Path(__file__).parents[2]), f"agentrl_sandbox.contain.{module}"
    with os.fdopen(os.memfd_create("plan"), "w+b") as file:
        file.write(json.dumps(plan).encode())
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, package, name, str(file.fileno())],
            pass_fds=(file.fileno(), *shared_fds),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
        )


def _run_visitor(
    plan: Mapping[str, Any], data: bytes | IO[bytes], stop: threading.Event
) -> tuple[int, bytes, str]:
    """Return exit code, output and the end of the errors of a visit for an archive."""
    deadline_s = time.monotonic() + _ARCHIVE_S
    pending = data if isinstance(data, bytes) else None
    stdin = subprocess.PIPE if isinstance(data, bytes) else data
    with _open_program("visit", plan, stdin=stdin) as visitor:
        while True:
            try:
                output, errors = visitor.communicate(pending, timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                pending = None
                if stop.is_set() or time.monotonic() > deadline_s:
                    visitor.kill()
                    raise SandboxError(f"{plan['path']}: no answer in {_ARCHIVE_S:g} s") from None
    return visitor.returncode, output, errors.decode(errors="replace")[-_SHOWN_CHARACTERS:]


def _read_environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
