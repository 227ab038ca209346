"""The process that runs model-written code: hardens itself, then serves cells.

Nothing here is trusted by the keeper: the code can rewrite all of it. That is why limits,
deadlines, output and nonces are held on the other side of the channel.
"""

import array
import fcntl
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from typing import Any

from agentrl_sandbox.inside import cell, kernel, seccomp, streams
from agentrl_sandbox.inside.frames import Frame, Reader, encode

CHANNEL_FD = 3
_PLACES = 4
_FORK_FDS = 3
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONUTF8": "1",
}


@dataclass(frozen=True)
class Confinement:
    """What an interpreter may use. Plain numbers, from `agentrl.sandbox.Limits`."""

    memory_bytes: int
    processes: int
    """-1 leaves it to the keeper, where the kernel would count the whole user."""
    processes_max: int
    """The hard limit: one interpreter's processes plus room for forked siblings."""
    open_files: int
    file_bytes: int
    cpu_s: int
    output_bytes: int
    isolated: bool


@dataclass(frozen=True)
class Endpoints:
    """The descriptors of one interpreter."""

    channel: int
    out: int
    err: int


def become(ends: Endpoints, confinement: Confinement, *, directory: str, nonce: str) -> None:
    """Turn this freshly forked process into an interpreter; never returns."""
    status = 1
    try:
        channel = _install(ends)
        os.closerange(CHANNEL_FD + 1, os.sysconf("SC_OPEN_MAX"))
        random.seed()
        _know_thyself()
        _enter(directory, confinement)
        Interpreter(channel, confinement, directory).serve(nonce)
        status = 0
    except BaseException:  # noqa: BLE001 - the keeper reads why on the error stream
        traceback.print_exc()
    finally:
        os._exit(status)


def _install(ends: Endpoints) -> socket.socket:
    """Put the descriptors in place as 0 to 3, and return the channel."""
    null = os.open("/dev/null", os.O_RDONLY)
    given = (null, ends.out, ends.err, ends.channel)
    # First out of the way: a cell may have closed one of the places.
    safe = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PLACES) for fd in given]
    for fd in given:
        os.close(fd)
    for place, fd in enumerate(safe):
        os.dup2(fd, place, inheritable=place < CHANNEL_FD)
        os.close(fd)
    streams.install()
    return socket.socket(fileno=CHANNEL_FD)


def _enter(directory: str, confinement: Confinement) -> None:
    os.setsid()
    kernel.die_with_parent(signal.SIGKILL)
    kernel.adopt_orphans(True)
    if confinement.isolated:
        kernel.enter_user_namespace()
    kernel.set_dumpable(True)
    os.chdir(directory)
    os.environ["HOME"] = os.environ["TMPDIR"] = directory
    _limit(confinement)
    if confinement.isolated:
        kernel.drop_capabilities()
        kernel.forbid_new_privileges()
        if (program := seccomp.build()) is not None:
            kernel.install_filter(program)


def prepare() -> None:
    """Make, in the supervisor, what every interpreter has: its environment, streams, filter."""
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    streams.prepare()
    seccomp.build()


def _know_thyself() -> None:
    """Tell the main thread its number, which the threading module takes down at a fork."""
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()


def _limit(confinement: Confinement) -> None:
    hard = confinement.processes_max
    pairs = {
        resource.RLIMIT_AS: (confinement.memory_bytes, confinement.memory_bytes),
        resource.RLIMIT_NOFILE: (confinement.open_files, confinement.open_files),
        resource.RLIMIT_FSIZE: (confinement.file_bytes, confinement.file_bytes),
        # One second between the signal that can be caught and the one that cannot.
        resource.RLIMIT_CPU: (confinement.cpu_s, confinement.cpu_s + 1),
        resource.RLIMIT_CORE: (0, 0),
    }
    if confinement.processes >= 0:
        pairs[resource.RLIMIT_NPROC] = (confinement.processes, hard)
    for what, (soft, top) in pairs.items():
        _, current = resource.getrlimit(what)
        if current != resource.RLIM_INFINITY:
            soft, top = min(soft, current), min(top, current)
        resource.setrlimit(what, (soft, top))


class Interpreter:
    """Names, and the loop that runs cells over them."""

    def __init__(self, channel: socket.socket, confinement: Confinement, directory: str) -> None:
        self._channel = channel
        self._confinement = confinement
        self._directory = directory
        self._reader = Reader()
        self._fds: list[int] = []
        self._cells = 0
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._namespace: dict[str, Any] = module.__dict__
        self._namespace["__builtins__"] = __builtins__

    def serve(self, nonce: str) -> None:
        """Say hello and answer requests until the keeper closes the channel."""
        self._send({"nonce": nonce, "hello": True})
        while True:
            data, fds, _, _ = socket.recv_fds(self._channel, 2**16, _FORK_FDS)
            if not data:
                return
            self._fds += fds
            for frame in self._reader.feed(data):
                self._answer(frame)

    def _answer(self, frame: Frame) -> None:
        if frame.body["op"] == "exec":
            self._exec(frame.body)
        else:
            self._fork(frame.body)

    def _exec(self, request: dict[str, Any]) -> None:
        self._cells += 1
        pid = os.getpid()
        outcome = cell.run(
            request["code"],
            self._namespace,
            number=self._cells,
            value_bytes_max=self._confinement.output_bytes,
        )
        if os.getpid() != pid:
            os._exit(0)  # the cell forked, and this is the child: it has no request to answer
        _flush()
        self._send({"nonce": request["nonce"], **outcome._asdict()})

    def _fork(self, request: dict[str, Any]) -> None:
        ends = Endpoints(*self._fds)
        self._fds = []
        state = random.getstate() if request["keep_rng"] else None
        try:
            child = self._branch()
        except OSError as error:
            self._send({"nonce": request["nonce"], "error": f"fork: {error}"})
            child = -1
        if child == 0:
            self._channel.detach()  # its number is about to name the new channel
            self._channel = _install(ends)
            self._reader = Reader()
            self._settle(request["directory"], state)
            self._send({"nonce": request["child_nonce"], "hello": True})
            return
        for fd in (ends.channel, ends.out, ends.err):
            os.close(fd)
        if child > 0:
            self._send({"nonce": request["nonce"], "forked": True})

    def _branch(self) -> int:
        """Fork so that the child belongs to the keeper, not to us: 0 in the child."""
        kernel.adopt_orphans(False)
        try:
            middle = kernel.fork()
            if middle == 0:
                _fork_and_leave()
                kernel.adopt_orphans(True)
                return 0
            _, status = os.waitpid(middle, 0)
        finally:
            kernel.adopt_orphans(True)
        if status != 0:
            raise OSError("no process left for the copy")
        return middle

    def _settle(self, directory: str, rng_state: tuple[Any, ...] | None) -> None:
        """Move into the copied directory, and away from the sibling's random numbers."""
        try:
            below = os.path.relpath(os.getcwd(), self._directory)
        except FileNotFoundError:
            below = "."
        os.chdir(directory if below.startswith("..") else os.path.join(directory, below))
        self._directory = directory
        os.environ.update(HOME=directory, TMPDIR=directory)
        if rng_state is not None:
            random.setstate(rng_state)
        elif (numpy_random := sys.modules.get("numpy.random")) is not None:
            # Python reseeds `random` itself when it forks.
            numpy_random.seed(int.from_bytes(os.urandom(4), "big"))

    def _send(self, body: dict[str, Any]) -> None:
        self._channel.sendall(encode(body))


def _fork_and_leave() -> None:
    """Go on as a child; the caller's process ends, with status 1 when there is no child."""
    try:
        child = os.fork()  # here, and not in between, the hooks of modules are run
    except BaseException:  # noqa: BLE001 - the code may have put anything there
        os._exit(1)
    if child != 0:
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
        except BaseException:  # noqa: BLE001 - the code may have put anything there
            continue


def send_fork(channel: socket.socket, body: dict[str, Any], ends: Endpoints) -> None:
    """Ask an interpreter for a copy of itself that uses these descriptors (keeper side)."""
    fds = array.array("i", (ends.channel, ends.out, ends.err))
    channel.sendmsg([encode(body)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
