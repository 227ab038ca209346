"""The keeper of one opened session and its forks: holds deadlines, nonces, output and files.

Invariants:
- every request of the host is answered once, unless the host cancelled it;
- a session has at most one job, and an interpreter that missed a deadline, ran out of memory or
  broke the protocol is dead before the host hears of it;
- whatever is below this process and is neither a known interpreter nor below one is killed;
- when this process ends, all of it ends.
"""

import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from agentrl_sandbox.inside import files, kernel, processes
from agentrl_sandbox.inside.child import Child, Death, Pipes, nonce
from agentrl_sandbox.inside.frames import START_S, Frame, encode
from agentrl_sandbox.inside.interpreter import Confinement, become, send_fork
from agentrl_sandbox.inside.link import Link
from agentrl_sandbox.inside.output import clip
from agentrl_sandbox.inside.state import Job, Session, Settings

FORKS_MAX = 256
"""Live forks of one session; the kernel's hard limit on processes leaves room for as many."""
_WATCH_S = 0.05
_STATUSES = frozenset(("ok", "error", "oom", "limit"))
_FRESH = "names are gone, files are kept, and the next cell starts in a fresh interpreter"


class Keeper:
    """The event loop of one keeper process."""

    def __init__(self, host: socket.socket, settings: Settings) -> None:
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[int, Session] = {}
        self._opened = 0
        self._host = Link(
            self._selector, host, on_frame=self._request, on_end=lambda _: self._leave()
        )
        self._handlers: dict[str, Callable[[int, dict[str, Any], bytes], None]] = {
            "exec": self._exec,
            "cancel": self._cancel,
            "write": self._write,
            "read": self._read,
            "fork": self._fork,
            "close": self._close,
        }

    def run(self) -> NoReturn:
        """Open the first session and serve until the host lets go."""
        first = self._new_session()
        self._spawn(first)
        first.job = Job(0, "start", START_S)
        while True:
            for key, events in self._selector.select(self._wait_s()):
                key.data(events)
            self._expire()

    # -- time ---------------------------------------------------------------------------------

    def _jobs(self) -> list[tuple[Session, Job]]:
        return [(s, s.job) for s in self._sessions.values() if s.job is not None]

    def _wait_s(self) -> float | None:
        deadlines = [job.deadline_s for _, job in self._jobs()]
        if not deadlines:
            return None
        wait_s = max(0.0, min(deadlines) - time.monotonic())
        return wait_s if self._settings.isolated else min(wait_s, _WATCH_S)

    def _expire(self) -> None:
        now_s = time.monotonic()
        for session, job in self._jobs():
            if job.deadline_s <= now_s:
                self._late(session, job)
            elif not self._settings.isolated and now_s - job.started_s > _WATCH_S:
                self._count_processes(session)

    def _late(self, session: Session, job: Job) -> None:
        if job.kind == "exec":
            self._stop(session, "timeout", f"stopped after {job.timeout_s:g} s; {_FRESH}")
        elif job.kind == "fork":
            self._abandon_fork(session, job, f"the copy did not start within {START_S:g} s")
        else:
            self._refuse(session, f"the interpreter did not start within {START_S:g} s")

    def _count_processes(self, session: Session) -> None:
        """Hold the limit on processes where the kernel would count the whole user."""
        limit = self._settings.processes
        if session.child and len(processes.descendants(session.child.pid)) >= limit:
            self._stop(session, "limit", f"more than {limit} processes; {_FRESH}")

    # -- requests of the host -----------------------------------------------------------------

    def _request(self, frame: Frame) -> None:
        request: int = frame.body["id"]
        self._handlers[frame.body["op"]](request, frame.body, frame.blob)

    def _reply(self, request: int, body: dict[str, Any], blob: bytes = b"") -> None:
        self._host.send(encode({"id": request, **body}, blob))

    def _exec(self, request: int, body: dict[str, Any], _: bytes) -> None:
        session = self._sessions[body["session"]]
        job = Job(request, "exec", body["timeout_s"])
        session.job = job
        if session.last_words is not None:
            status, error = session.last_words
            session.last_words = None
            self._finish(session, status, error=error)
            return
        if session.child is None:
            if session.cpu_s >= self._settings.cpu_s:
                self._finish(session, "limit", error=self._cpu_text())
                return
            self._spawn(session)
        assert session.child is not None
        session.child.drain()
        session.child.clear()
        session.child.ask({"op": "exec", "code": body["code"]})

    def _cancel(self, request: int, body: dict[str, Any], _: bytes) -> None:
        session = self._sessions.get(body["session"])
        if session and session.job and session.job.request == body["cancels"]:
            job, session.job = session.job, None
            if job.kind == "fork":
                self._drop_copy(job)
            self._bury(session)

    def _write(self, request: int, body: dict[str, Any], blob: bytes) -> None:
        directory = self._sessions[body["session"]].directory
        limit_bytes = self._settings.file_bytes
        try:
            files.write(directory, body["path"], blob, limit_bytes=limit_bytes)
        except OSError as error:
            self._reply(request, _os_error(error))
        else:
            self._reply(request, {})

    def _read(self, request: int, body: dict[str, Any], _: bytes) -> None:
        directory = self._sessions[body["session"]].directory
        try:
            data = files.read(directory, body["path"], limit_bytes=self._settings.file_bytes)
        except OSError as error:
            self._reply(request, _os_error(error))
        else:
            self._reply(request, {}, data)

    def _close(self, request: int, body: dict[str, Any], _: bytes) -> None:
        session = self._sessions.pop(body["session"], None)
        if session is not None:
            if session.job is not None:
                self._reply(session.job.request, {"gone": "the session was closed meanwhile"})
            if self._settings.isolated and not self._sessions:
                self._go_with(request)
            self._bury(session)
            self._remove(session.directory)
        self._reply(request, {})

    # -- forking ------------------------------------------------------------------------------

    def _fork(self, request: int, body: dict[str, Any], _: bytes) -> None:
        parent = self._sessions[body["session"]]
        if refusal := self._why_not_fork(parent):
            self._reply(request, {"unsupported": refusal})
            return
        try:
            session = self._new_session()
        except OSError as error:
            self._reply(request, {"unsupported": f"no directory for the copy: {error}"})
            return
        try:
            files.copy_tree(parent.directory, session.directory)
        except OSError as error:
            self._discard(session)
            self._reply(request, {"unsupported": f"the directory cannot be copied: {error}"})
            return
        if parent.child is None:
            self._sessions[session.id] = session
            self._reply(request, {"session": session.id})
            return
        self._ask_copy(parent, session, request, keep_rng=bool(body.get("keep_rng")))

    def _why_not_fork(self, session: Session) -> str | None:
        if len(self._sessions) >= FORKS_MAX:
            return (
                f"this session has {len(self._sessions)} live copies, and {FORKS_MAX} is the most"
            )
        if session.last_words is not None:
            return session.last_words[1]
        if session.child is not None and (count := processes.threads(session.child.pid)) > 1:
            return (
                f"the interpreter runs {count} threads, and a copy would have only one of them; "
                "let them end first"
            )
        return None

    def _ask_copy(self, parent: Session, copy: Session, request: int, *, keep_rng: bool) -> None:
        assert parent.child is not None
        self._allow_processes(len(self._sessions) + 2)  # the copy, and the process in between
        pipes = Pipes(identify=True)
        job = Job(
            request,
            "fork",
            START_S,
            pipes=pipes,
            copy_nonce=nonce(),
            copy_directory=copy.directory,
        )
        parent.job = job
        body = {
            "op": "fork",
            "nonce": parent.child.expect(nonce()),
            "child_nonce": job.copy_nonce,
            "directory": copy.directory,
            "keep_rng": keep_rng,
        }
        greet = partial(self._greet, parent, copy, job, pipes)
        self._selector.register(pipes.ours, selectors.EVENT_READ, greet)
        try:
            send_fork(parent.child.link.channel, body, pipes.theirs)
        except OSError as error:
            self._abandon_fork(parent, job, f"the interpreter does not listen: {error}")
        finally:
            pipes.close_theirs()

    def _greet(self, parent: Session, copy: Session, job: Job, pipes: Pipes, _: int) -> None:
        """Take in the copy that has just started."""
        if parent.job is not job:
            return
        try:
            pid = pipes.sender(job.copy_nonce)
            if any(s.child and s.child.pid == pid for s in self._sessions.values()):
                raise ValueError("the copy is no process of its own")
        except (OSError, ValueError) as error:
            self._abandon_fork(parent, job, f"{error}")
            return
        self._selector.unregister(pipes.ours)
        copy.child = self._adopt(copy, pipes, pid)
        self._sessions[copy.id] = copy
        parent.job = None
        self._reply(job.request, {"session": copy.id})

    def _abandon_fork(self, session: Session, job: Job, why: str) -> None:
        session.job = None
        self._drop_copy(job)
        self._reply(job.request, {"unsupported": why})

    def _drop_copy(self, job: Job) -> None:
        assert job.pipes is not None
        self._selector.unregister(job.pipes.ours)
        job.pipes.close_ours()
        self._end_strays()
        self._remove(job.copy_directory)

    def _discard(self, session: Session) -> None:
        self._bury(session)
        self._remove(session.directory)

    # -- interpreters -------------------------------------------------------------------------

    def _spawn(self, session: Session) -> None:
        """Start a fresh interpreter: a fork of this process, which never ran the code."""
        pipes = Pipes()
        greeting = nonce()
        confinement = self._confinement(session)
        pid = kernel.fork()
        if pid == 0:
            become(pipes.theirs, confinement, directory=session.directory, nonce=greeting)
        pipes.close_theirs()
        session.child = self._adopt(session, pipes, pid)
        session.child.expect(greeting)

    def _adopt(self, session: Session, pipes: Pipes, pid: int) -> Child:
        return Child(
            self._selector,
            pipes,
            pid,
            output_bytes=self._settings.output_bytes,
            on_reply=lambda child, body: self._interpreter_replied(session, child, body),
            on_death=lambda child: self._interpreter_died(session, child),
            on_violation=lambda child, what: self._interpreter_lied(session, child, what),
        )

    def _confinement(self, session: Session) -> Confinement:
        limits = self._settings
        counted = limits.isolated
        return Confinement(
            memory_bytes=limits.memory_bytes,
            processes=limits.processes + max(0, len(self._sessions) - 1) if counted else -1,
            processes_max=limits.processes + FORKS_MAX,
            open_files=limits.open_files,
            file_bytes=limits.file_bytes,
            cpu_s=max(1, round(limits.cpu_s - session.cpu_s)),
            output_bytes=limits.output_bytes,
            isolated=limits.isolated,
        )

    def _allow_processes(self, sessions: int) -> None:
        """Leave each interpreter its share of processes, whatever its siblings hold."""
        if not self._settings.isolated:
            return
        limits = (self._settings.processes + sessions - 1, self._settings.processes + FORKS_MAX)
        for session in self._sessions.values():
            if session.child is not None:
                resource.prlimit(session.child.pid, resource.RLIMIT_NPROC, limits)

    def _interpreter_replied(self, session: Session, child: Child, body: dict[str, Any]) -> None:
        job = session.job
        if "hello" in body:
            if job is not None and job.kind == "start":
                session.job = None
                self._host.send(encode({"id": 0, "session": session.id}))
        elif "forked" in body:
            return
        elif job is not None and job.kind == "fork":
            self._abandon_fork(session, job, clip(str(body.get("error")), 1000)[0])
        elif job is not None:
            self._cell_done(session, body)

    def _cell_done(self, session: Session, body: dict[str, Any]) -> None:
        status, limit_bytes = body.get("status"), self._settings.output_bytes
        if not isinstance(status, str) or status not in _STATUSES:
            self._stop(session, "violation", f"its result makes no sense; {_FRESH}")
            return
        value, error = (_text(body.get(key), limit_bytes + 2**14) for key in ("value", "error"))
        if status == "oom":
            self._stop(session, "oom", f"{error}\n{_FRESH}")
            return
        if not self._settings.isolated and (over := self._over_disk(session)):
            status, error = "limit", over
        self._finish(
            session, status, value=value, error=error, truncated=bool(body.get("truncated"))
        )

    def _over_disk(self, session: Session) -> str | None:
        used_bytes, limit_bytes = files.used_bytes(session.directory), self._settings.disk_bytes
        if used_bytes <= limit_bytes:
            return None
        return f"the directory holds {used_bytes} bytes, over the limit of {limit_bytes}"

    def _interpreter_died(self, session: Session, child: Child) -> None:
        if session.child is not child:
            return
        errors = child.stderr
        death = self._bury(session)
        # What the kernel limits and what it reports are counted apart, and differ a little.
        used_up = session.cpu_s > 0.9 * self._settings.cpu_s
        status, error = "crash", death.text
        if death.signal == signal.SIGXCPU or (death.signal == signal.SIGKILL and used_up):
            session.cpu_s = max(session.cpu_s, self._settings.cpu_s)
            status, error = "limit", self._cpu_text()
        if session.job is not None and session.job.kind == "start":
            self._refuse(session, f"{death.text}: {errors.text()}")
        else:
            self._ended(session, status, f"{error}; {_FRESH}", child)

    def _interpreter_lied(self, session: Session, child: Child, what: str) -> None:
        if session.child is child:
            self._bury(session)
            self._ended(session, "violation", f"{what}; {_FRESH}", child)

    def _ended(self, session: Session, status: str, error: str, child: Child) -> None:
        """Report an end that we did not cause: now, or with the next cell."""
        if session.job is None:
            session.last_words = (status, error)
        elif session.job.kind == "fork":
            self._abandon_fork(session, session.job, error)
            session.last_words = (status, error)
        else:
            self._finish(session, status, error=error, child=child)

    def _stop(self, session: Session, status: str, error: str) -> None:
        """End the interpreter in the middle of a cell, and answer."""
        child = session.child
        self._bury(session)
        self._finish(session, status, error=error, child=child)

    def _bury(self, session: Session) -> Death:
        """End the session's processes, all of them."""
        child, session.child = session.child, None
        if child is None:
            return Death()
        death = child.end()
        session.cpu_s += death.cpu_s
        self._end_strays()
        return death

    def _end_strays(self) -> None:
        processes.end_strays({s.child.pid for s in self._sessions.values() if s.child})

    def _finish(
        self,
        session: Session,
        status: str,
        *,
        value: str | None = None,
        error: str | None = None,
        truncated: bool = False,
        child: Child | None = None,
    ) -> None:
        """Answer the cell that the session is busy with."""
        job, session.job = session.job, None
        if job is None:
            return
        child = child or session.child
        body: dict[str, Any] = {"status": status, "value": value, "error": error}
        if child is not None:
            child.drain()
            body.update(stdout=child.stdout.text(), stderr=child.stderr.text())
            truncated = truncated or child.stdout.truncated or child.stderr.truncated
        body.update(truncated=truncated, seconds=time.monotonic() - job.started_s)
        self._reply(job.request, body)

    def _cpu_text(self) -> str:
        return f"the session has used its {self._settings.cpu_s:g} s of CPU time"

    # -- directories, and the end -------------------------------------------------------------

    def _new_session(self) -> Session:
        number = self._opened
        self._opened += 1
        directory = os.path.join(self._settings.root, str(number))
        os.mkdir(directory, 0o700)
        if self._settings.isolated:
            size = f"size={self._settings.disk_bytes},mode=700,nr_inodes=65536"
            kernel.mount("session", directory, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
        session = Session(number, directory)
        if not self._sessions:
            self._sessions[number] = session
        return session

    def _remove(self, directory: str) -> None:
        if self._settings.isolated:
            kernel.detach(directory)
            os.rmdir(directory)
        else:
            files.remove_tree(directory)

    def _refuse(self, session: Session, why: str) -> None:
        """Tell the host that this machine cannot give what was asked for, and leave."""
        session.job = None
        self._host.send(encode({"id": 0, "refused": why}))
        self._leave()

    def _go_with(self, request: int) -> NoReturn:
        """End with the last session: our namespaces, its directory in them, end with us."""
        processes.kill(processes.EVERYBODY)
        self._reply(request, {})
        os._exit(0)

    def _leave(self) -> NoReturn:
        for session in self._sessions.values():
            if session.child is not None:
                session.child.end()
                session.child = None
        self._end_strays()
        if not self._settings.isolated:
            files.remove_tree(self._settings.root)
        sys.stderr.flush()
        os._exit(0)


def _text(value: object, limit_bytes: int) -> str | None:
    if not isinstance(value, str):
        return None
    # A lone surrogate is text to Python, and to nobody who has to encode it.
    return clip(value.encode(errors="replace").decode(), limit_bytes)[0]


def _os_error(error: OSError) -> dict[str, Any]:
    kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    kind = next((k.__name__ for k in kinds if isinstance(error, k)), "OSError")
    return {"os_error": kind, "text": str(error)}
