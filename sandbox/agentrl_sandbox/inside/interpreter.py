"""The process that runs model-written code: hardens itself, then serves cells.

Nothing here is trusted by anybody outside: the code can rewrite all of it. That is why limits,
deadlines and kills are held by the keeper, and why the host takes from here at most one answer to
each of its questions, which must carry the question's nonce.
"""

import errno
import fcntl
import os
import random
import signal
import socket
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from typing import Any

from agentrl_sandbox.inside import (
    cell,
    confine,
    figures,
    kernel,
    landlock,
    seccomp,
    session_directory,
    streams,
)
from agentrl_sandbox.inside.frames import FIGURE_BYTES_MAX, FIGURES_MAX, ChannelFrameReader, encode
from agentrl_sandbox.inside.output import OutputCapture, open_for_append
from agentrl_sandbox.inside.quota import SessionLimits

CHANNEL_FD = 3
_PLACES = 6
_CHUNK_BYTES = 2**16
_FORK_FDS = 3
_FDS_SPACE = socket.CMSG_SPACE(4 * _FORK_FDS)


@dataclass(frozen=True)
class InterpreterDescriptors:
    """The descriptors of one interpreter."""

    channel: int
    out: int
    err: int


def become(
    ends: InterpreterDescriptors, confinement: SessionLimits, *, directory: str, nonce: str
) -> None:
    """Turn this freshly forked process into an interpreter; never returns."""
    status = 1
    try:
        channel = _install(ends)
        os.closerange(_PLACES, os.sysconf("SC_OPEN_MAX"))
        random.seed()
        _set_thread_id()
        listener = _enter(directory, confinement)
        interpreter = CellInterpreter(channel, confinement, directory)
        interpreter.greet(nonce, listener)
        interpreter.serve()
        status = 0
    except BaseException:  # noqa: BLE001 - the keeper reads why on the error stream
        traceback.print_exc()
    finally:
        os._exit(status)


def _install(ends: InterpreterDescriptors) -> socket.socket:
    """Put the descriptors in place (0 to 2, 3 the channel, 4 and 5 the output); return the channel.

    What is written to 1 and 2 is appended to files in memory, which 4 and 5 read back and crop.
    """
    null = os.open("/dev/null", os.O_RDONLY)
    out, err = open_for_append(ends.out), open_for_append(ends.err)
    fds = (null, out, err, ends.channel, ends.out, ends.err)
    # First out of the way: a cell may have closed one of the places.
    safe = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PLACES) for fd in fds]
    for fd in fds:
        os.close(fd)
    for number, fd in enumerate(safe):
        os.dup2(fd, number, inheritable=number < CHANNEL_FD)
        os.close(fd)
    streams.install()
    return socket.socket(fileno=CHANNEL_FD)


def _enter(directory: str, confinement: SessionLimits) -> int | None:
    confine.become_the_user(confinement)
    os.setsid()
    kernel.die_with_parent(signal.SIGKILL)
    kernel.adopt_orphans(True)
    if confinement.isolated:
        kernel.enter_user_namespace()
    kernel.set_dumpable(True)
    confine.go_first()
    _move_in(directory)
    if confinement.packages:
        sys.path.append(confinement.packages)
    return confine.forbid(listen=True) if confinement.isolated else None


def _move_in(directory: str) -> None:
    os.chdir(directory)
    os.environ["HOME"] = os.environ["TMPDIR"] = directory
    figures.prepare(os.environ, directory)


def prepare() -> None:
    """Make, in the supervisor, what every interpreter has: its environment, streams, filter."""
    os.environ.clear()
    os.environ.update(confine.ENVIRONMENT)
    streams.prepare()
    seccomp.build()
    kernel.tid_address()  # found here, where nothing forbids to ask


def _set_thread_id() -> None:
    """Tell the main thread its number, which the threading module takes down at a fork."""
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()


class CellInterpreter:
    """Names, and the loop that runs cells over them."""

    def __init__(self, channel: socket.socket, confinement: SessionLimits, directory: str) -> None:
        self._channel = channel
        self._confinement = confinement
        self._directory = directory
        self._reader = ChannelFrameReader()
        self._fds: list[int] = []
        self._cells = 0
        self._capture()
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._namespace: dict[str, Any] = module.__dict__
        self._namespace["__builtins__"] = __builtins__

    def greet(self, nonce: str, listener: int | None = None) -> None:
        """Tell the keeper that we are here, and the host once the keeper lets us."""
        fds = [] if listener is None else [listener]
        socket.send_fds(self._channel, [encode({"nonce": nonce, "hello": True})], fds)
        for fd in fds:
            os.close(fd)
        # Not before: with a low limit on files the kernel may refuse to send the listener.
        confine.limit(self._confinement)
        self._settle()

    def serve(self) -> None:
        """Answer requests until the channel is closed."""
        while True:
            for body in self._receive():
                if body["op"] == "exec":
                    self._exec(body)
                else:
                    self._fork(body)

    def _receive(self) -> list[dict[str, Any]]:
        """Return the requests that came; the process ends with its channel."""
        data, ancillary, _, _ = self._channel.recvmsg(
            _CHUNK_BYTES, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            os._exit(0)
        for _, _, packed in ancillary:
            self._fds += memoryview(packed).cast("i").tolist()
        return [frame.body for frame in self._reader.feed(data)]

    def _capture(self) -> None:
        output_bytes, file_bytes = self._confinement.output_bytes, self._confinement.file_bytes
        self._output = [OutputCapture(fd, output_bytes, file_bytes=file_bytes) for fd in (4, 5)]
        streams.bind_captures(self._output)

    def _exec(self, request: dict[str, Any]) -> None:
        self._cells += 1
        pid = os.getpid()
        outcome = cell.run(
            request["code"],
            self._namespace,
            number=self._cells,
            value_bytes_max=self._confinement.output_bytes,
        )
        pictures = figures.collect(FIGURES_MAX, FIGURE_BYTES_MAX)
        if os.getpid() != pid:
            os._exit(0)  # the cell forked, and this is the child: it has no request to answer
        _flush()
        (out, cut_out), (err, cut_err) = (capture.take() for capture in self._output)
        self._send(
            {
                "nonce": request["nonce"],
                "status": outcome.status,
                "value": outcome.value,
                "error": outcome.error,
                "truncated": outcome.truncated or cut_out or cut_err,
                "stdout": out,
                "stderr": err,
                "images": [len(picture) for picture in pictures],
            },
            b"".join(pictures),
        )

    def _fork(self, request: dict[str, Any]) -> None:
        ends = InterpreterDescriptors(*self._fds)
        self._fds = []
        state = random.getstate() if request["keep_rng"] else None
        apart = request["apart"]
        try:
            child = self._branch()
        except OSError as error:
            refused = encode({"nonce": request["nonce"], "error": f"fork: {error}"})
            socket.socket(fileno=os.dup(ends.channel)).sendall(refused)
            child = -1
        if child == 0:
            self._channel.detach()  # its number is about to name the new channel
            self._channel = _install(ends)
            self._reader = ChannelFrameReader()
            self._capture()
            self._start_copy(request["nonce"], state, apart=apart)
            return
        for fd in (ends.channel, ends.out, ends.err):
            os.close(fd)
        if apart and not _has_children():  # whom we could not signal any more
            landlock.separate()

    def _start_copy(self, nonce: str, rng_state: tuple[Any, ...] | None, *, apart: bool) -> None:
        directory = os.getcwd() if _has_directory() else self._directory
        self._send({"nonce": nonce, "hello": True})
        if apart:
            self._unshare_copy(nonce)
        self._settle(directory)
        if apart:
            landlock.separate()
        _reseed(rng_state)

    def _unshare_copy(self, nonce: str) -> None:
        """Enter namespaces of our own. The filter lets us, because the keeper waits for it."""
        try:
            kernel.enter_user_namespace(others=session_directory.OWN)
        except OSError as error:
            deep = error.errno in (errno.EUSERS, errno.ENOSPC)
            why = "too many nested copies, or user namespaces" if deep else str(error)
            self._send({"nonce": nonce, "error": f"no namespaces for the copy: {why}"})
            os._exit(1)
        self._send({"nonce": nonce, "unshared": True})

    def _settle(self, directory: str | None = None) -> None:
        """Wait until everything is ready for us, move in, and greet the host."""
        while not (requests := self._receive()):
            continue
        (request,) = requests
        home = request["directory"]
        if directory is None:
            os.chdir(home)  # it may have been mounted while we waited
        else:
            kernel.drop_capabilities()  # a user namespace of our own gave us all of it
            below = os.path.relpath(directory, self._directory)
            _move_in(home)
            if not below.startswith(".."):
                os.chdir(below)
        self._directory = home
        confine.limit_processes(request["processes"])
        kernel.set_dumpable(not self._confinement.isolated)  # copies shall not read our memory
        self._send({"nonce": request["nonce"], "hello": True})

    def _branch(self) -> int:
        """Fork so that the child belongs to the keeper, not to us: 0 in the child."""
        if (address := kernel.tid_address()) is not None:
            return kernel.fork_beside(address)
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
            raise OSError("no process is left for the copy")
        return middle

    def _send(self, body: dict[str, Any], blob: bytes = b"") -> None:
        self._channel.sendall(encode(body, blob))


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _has_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _reseed(rng_state: tuple[Any, ...] | None) -> None:
    """Move away from the sibling's random numbers, unless its state is to be kept."""
    if rng_state is not None:
        random.setstate(rng_state)
    elif (numpy_random := sys.modules.get("numpy.random")) is not None:
        # Python reseeds `random` itself when it forks.
        numpy_random.seed(int.from_bytes(os.urandom(4), "big"))


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
