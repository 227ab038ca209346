"""The keeper of one opened session and its forks: starts, stops, copies, files, commands.

Cells do not come by here: the host and the interpreter speak directly. The keeper holds what the
code must not: processes, namespaces, files, and the power to end them.

Invariants:
- every request of the host is answered once;
- an interpreter that the host was told is gone is dead, with all it started;
- whatever is below this process and belongs to no session is killed;
- when this process ends, all of it ends.
"""

import contextlib
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

from agentrl_sandbox.inside import files, kernel, processes, session_directory
from agentrl_sandbox.inside.channel_link import ChannelLink
from agentrl_sandbox.inside.command import CommandNamespace, RunningCommand
from agentrl_sandbox.inside.commands import CommandRunner
from agentrl_sandbox.inside.cpu_time import (
    LOOK_S,
    REST_S,
    ProcessSample,
    count_started,
    newest_pid,
    sample_processes,
)
from agentrl_sandbox.inside.frames import START_S, ChannelFrame, encode
from agentrl_sandbox.inside.interpreter import become
from agentrl_sandbox.inside.interpreter_process import (
    ExitStatus,
    HeldProcess,
    InterpreterPipes,
    InterpreterProcess,
)
from agentrl_sandbox.inside.interpreter_start import (
    InterpreterStart,
    InterpreterStartError,
    SessionState,
    ask_copy,
)
from agentrl_sandbox.inside.output import OutputCapture
from agentrl_sandbox.inside.quota import SessionLimits, SessionQuota
from agentrl_sandbox.inside.syscall_listener import SyscallListener

FORKS_MAX = 256
"""Live forks of one session; the kernel's hard limit on processes leaves room for as many."""
_WATCH_S = 0.05
_LAST_BREATH_S = 0.2
"""A process that exits closes its channel, and a thread is joined, a moment before it is gone."""
_EVENT = -1
"""The number of a message that answers no request."""

Body = dict[str, Any]


class SessionInit:
    """The event loop of one keeper process."""

    def __init__(self, host: socket.socket, settings: SessionLimits) -> None:
        self._settings = settings
        self._quota = SessionQuota(settings, FORKS_MAX)
        # Not epoll: the kernel counts its watches per user, and all sessions are one user to it.
        self._selector = selectors.PollSelector()
        self._sessions: dict[int, SessionState] = {}
        self._births: dict[int, InterpreterStart] = {}
        """By the descriptor of their channel."""
        self._namespaces = session_directory.open_namespaces() if settings.isolated else {}
        self._opened = 0
        self._lives = 0
        self._looked_s = time.monotonic()
        self._newest_pid = 0
        self._may_compute = False
        """Whether there were processes that the kernel does not hold to a session's CPU time."""
        self._host = ChannelLink(
            self._selector, host, on_frame=self._request, on_end=lambda _: self._leave()
        )
        self._commands = CommandRunner(
            settings, self._quota, self._selector, reply=self._reply, list_known=self._list_known
        )
        self._handlers: dict[str, Callable[[int, SessionState, Body, bytes], None]] = {
            "spawn": self._spawn,
            "stop": self._stop,
            "spare": self._spare,
            "fork": self._fork,
            "run": self._commands.run,
            "cancel": self._commands.cancel,
            "write": self._serve_file,
            "read": self._serve_file,
            "entries": self._serve_file,
            "usage": self._check_usage,
            "close": self._close,
        }

    def run(self) -> NoReturn:
        """Open the first session and serve until the host lets go."""
        first = self._new_session()
        self._sessions[first.id] = first
        self._spawn(0, first, {}, b"")
        while True:
            ready = self._selector.select(self._wait_s())
            self._reap_orphans()
            # Listeners last: a copy greets first, and may ask for something only after that.
            ready.sort(key=lambda r: isinstance(r[0].fileobj, SyscallListener))
            for key, events in ready:
                # What came before may have closed it, and a new one may have its number by now.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
            self._expire()

    def _reap_orphans(self) -> None:
        """Wait for what was left behind and has ended: the kernel counts it until then."""
        while (pid := processes.find_dead_child()) and pid not in self._list_known():
            os.waitpid(pid, os.WNOHANG)

    # -- time ---------------------------------------------------------------------------------

    def _list_commands(self) -> list[tuple[SessionState, RunningCommand]]:
        return [(s, c) for s in self._sessions.values() for c in s.commands.values()]

    def _wait_s(self) -> float | None:
        deadlines = [b.deadline_s for b in self._births.values() if b.deadline_s]
        deadlines += [c.deadline_s for _, c in self._list_commands()]
        if self._lives:
            deadlines.append(self._looked_s + (LOOK_S if self._may_compute else REST_S))
        wait_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        if self._settings.isolated:
            return wait_s
        return _WATCH_S if wait_s is None else min(wait_s, _WATCH_S)

    def _expire(self) -> None:
        now_s = time.monotonic()
        for birth in list(self._births.values()):
            if birth.deadline_s and birth.deadline_s <= now_s:
                self._abort_birth(birth, f"it did not start within {START_S:g} s")
        for session, command in self._list_commands():
            if command.deadline_s <= now_s:
                self._commands.finish(session, command, "timeout")
        if now_s >= self._looked_s + (LOOK_S if self._may_compute else REST_S):
            self._measure_cpu(now_s)
        if not self._settings.isolated:
            for session in self._sessions.values():
                self._check_processes(session)

    def _measure_cpu(self, now_s: float) -> None:
        """Add up the CPU time of each session's processes; end a session that has used its up."""
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        self._commands.drain()
        before, self._newest_pid = self._newest_pid, newest_pid()
        if before == self._newest_pid and not self._may_compute:
            return  # nothing has started since
        samples = sample_processes()
        child_pids = self._list_known()
        self._may_compute = any(sample.key[0] not in child_pids for sample in samples)
        meter_keys = {key for session in self._sessions.values() for key in session.meter.seen}
        new = sum(sample.key not in meter_keys for sample in samples)
        others_passed = count_started(before, self._newest_pid) > new
        for session in [*self._sessions.values()]:
            session_samples = self._select_samples(session, samples)
            session.meter.add(session_samples, elapsed_s=elapsed_s, others_passed=others_passed)
            if session.meter.used_s > self._settings.cpu_s:
                self._end_computing(session)

    def _select_samples(
        self, session: SessionState, samples: list[ProcessSample]
    ) -> list[ProcessSample]:
        """Return those of a session's processes; a dead one is where its parent is."""
        if self._settings.isolated:
            read = processes.read_userns
            return [s for s in samples if (read(s.key[0]) or read(s.parent)) in session.worlds]
        tops = {session.life.pid} if session.life else set[int]()
        tops |= {command.process.pid for command in session.commands.values()}
        table = {sample.key[0]: sample.parent for sample in samples}
        pids = tops.union(*(processes.find_below(top, table) for top in tops))
        return [sample for sample in samples if sample.key[0] in pids]

    def _end_computing(self, session: SessionState) -> None:
        """End all that runs in a session that has used its CPU time up."""
        self._drop_spare(session)
        self._drop_births(session, self._quota.cpu_text)
        for command in [*session.commands.values()]:
            self._commands.finish(session, command, "limit")
        self._end_over_limit(session, self._quota.cpu_text)
        self._end_strays(session)

    def _check_processes(self, session: SessionState) -> None:
        """Hold the limit on processes where the kernel would count the whole user."""
        limit = self._settings.processes
        if session.life and len(processes.descendants(session.life.pid)) >= limit:
            self._end_over_limit(session, f"more than {limit} processes")

    # -- the host -----------------------------------------------------------------------------

    def _request(self, frame: ChannelFrame) -> None:
        body = frame.body
        session = self._sessions.get(body["session"])
        if session is None:
            self._reply(body["id"], {"gone": "the session is closed"})
            return
        try:
            self._handlers[body["op"]](body["id"], session, body, frame.blob)
        except InterpreterStartError as error:
            self._reply(body["id"], {"unsupported": str(error)})

    def _serve_file(self, request: int, session: SessionState, body: Body, blob: bytes) -> None:
        settings = self._settings
        answer, data = files.serve(
            session.place.handle,
            body,
            blob,
            limit_bytes=settings.file_bytes,
            is_bare=not settings.isolated,
        )
        self._reply(request, answer, data)

    def _check_usage(self, request: int, session: SessionState, _: Body, __: bytes) -> None:
        over = files.explain_excess(session.place.handle, self._settings.disk_bytes)
        self._reply(request, {"over": over})

    def _reply(self, request: int, body: Body, blob: bytes = b"", fd: int | None = None) -> None:
        self._host.send(encode({"id": request, "fds": int(fd is not None), **body}, blob), fd)

    # -- births -------------------------------------------------------------------------------

    def _spawn(self, request: int, session: SessionState, _: Body, __: bytes) -> None:
        """Start a fresh interpreter: a fork of this process, which never ran the code."""
        if session.used_cpu_s >= self._settings.cpu_s:
            self._refuse_start(request, session, "limit", self._quota.cpu_text)
            return
        self._drop_births(session, "another interpreter was requested")
        if session.life is not None:  # whoever had asked for it was cancelled and never took it
            self._bury(session)
        wires = InterpreterPipes()
        birth = InterpreterStart("fresh", request, session, wires)
        confinement = self._quota.confinement(session.used_cpu_s)
        try:
            pid = kernel.fork()
        except OSError as error:
            wires.close()
            why = f"no process could be started for an interpreter: {error}"
            self._refuse_start(request, session, "refused", why)
            return
        if pid == 0:
            home = session.place
            for kind, fd in home.namespaces.items():
                kernel.join(fd, kind)
            become(wires.theirs, confinement, directory=home.path, nonce=birth.nonce)
        birth.process = HeldProcess(pid)
        wires.close_theirs()
        self._register_birth(birth)

    def _drop_births(self, session: SessionState, why: str) -> None:
        for birth in [b for b in self._births.values() if b.session is session]:
            self._abort_birth(birth, why)

    def _copy(self, birth: InterpreterStart, *, keep_rng: bool) -> None:
        assert birth.origin is not None
        self._allow(birth.origin, self._quota.processes_max)
        self._register_birth(birth)
        try:
            ask_copy(birth, keep_rng=keep_rng)
        except InterpreterStartError as error:
            self._abort_birth(birth, str(error))

    def _register_birth(self, birth: InterpreterStart) -> None:
        channel = birth.wires.ours
        self._births[channel.fileno()] = birth
        self._selector.register(channel, selectors.EVENT_READ, partial(self._on_greeting, birth))

    def _on_greeting(self, birth: InterpreterStart, _: int) -> None:
        if self._births.get(birth.wires.ours.fileno()) is not birth:
            return  # over, by what came before in the same round
        try:
            message = birth.read_greeting()
            if message == "hello" and birth.origin and birth.process.pid in self._list_known(birth):
                raise InterpreterStartError("the copy is not a process of its own")
            if birth.kind == "spare" and message:
                birth.deadline_s = 0.0
                birth.session.spare = birth
                self._share_processes()
                self._reply(birth.request, {})
            elif message == "unshared" or (message == "hello" and not birth.apart):
                # Now the host learns how to speak to it.
                moved = self._move_in(birth)
                self._reply(birth.request, moved, fd=birth.wires.ours.fileno())
        except InterpreterStartError as error:
            self._abort_birth(birth, str(error))

    def _move_in(self, birth: InterpreterStart) -> Body:
        """Bring a newborn to its session; return what the host is told of it."""
        session = birth.session
        self._lives += 1
        count = self._quota.processes(0)
        greeting = birth.settle(processes=count, own_namespaces=self._namespaces)
        output_bytes = self._settings.output_bytes
        life = InterpreterProcess(
            self._lives, birth.process, birth.wires, output_bytes, birth.ancestors
        )
        self._forget(birth)
        if birth.listener is not None:
            decide = partial(self._decide, birth.listener)
            self._selector.register(birth.listener, selectors.EVENT_READ, decide)
        session.life = life
        session.worlds.add(life.world)
        self._sessions[session.id] = session
        self._selector.register(
            life.process.pidfd, selectors.EVENT_READ, partial(self._on_death, session, life)
        )
        self._share_processes()
        return {"session": session.id, "life": life.number, "nonce": greeting}

    def _decide(self, listener: SyscallListener, _: int) -> None:
        """Answer a system call that interpreters may make only while they are being copied."""
        syscall = listener.next()
        if syscall is None:  # who asked was killed, or everybody is gone
            if listener.is_abandoned():
                self._selector.unregister(listener)
                listener.close()
        elif any(birth.may_unshare(syscall) for birth in self._births.values()):
            listener.allow(syscall)
        else:
            listener.refuse(syscall)

    def _forget(self, birth: InterpreterStart) -> None:
        self._selector.unregister(birth.wires.ours)
        del self._births[birth.wires.ours.fileno()]

    def _abort_birth(self, birth: InterpreterStart, why: str) -> None:
        self._forget(birth)
        death = birth.process.end()
        if birth.kind == "fresh":
            stderr, _ = OutputCapture(birth.wires.err, self._settings.output_bytes).take()
            kind, why = "refused", f"the interpreter {death.text} ({why}): {stderr}"
        else:
            kind = "unsupported"
        birth.wires.close()
        self._end_strays(birth.session)
        if birth.session.spare is birth:
            birth.session.spare = None
        else:
            self._refuse_start(birth.request, birth.session, kind, why)
        self._share_processes()

    def _refuse_start(self, request: int, session: SessionState, kind: str, why: str) -> None:
        """Tell the host that there is no interpreter; without one there is no copy either."""
        if session.id in self._sessions:
            self._reply(request, {kind: why})
            return
        self._remove(session)
        self._reply(request, {"unsupported": why})

    def _list_known(self, newborn: InterpreterStart | None = None) -> set[int]:
        """Return the processes that may be below this one."""
        pids = {s.life.pid for s in self._sessions.values() if s.life}
        pids |= {b.process.pid for b in self._births.values() if b is not newborn}
        return pids | {c.process.pid for _, c in self._list_commands()}

    def _share_processes(self) -> None:
        """Leave each interpreter its share of processes, whatever its copies hold."""
        lives = [s.life for s in self._sessions.values() if s.life]
        for life in lives:
            below = sum(life.number in other.ancestors for other in lives)
            self._allow(life, self._quota.processes(below))

    def _allow(self, life: InterpreterProcess, count: int) -> None:
        if self._settings.isolated:
            limits = (count, self._quota.processes_max)
            # Gone, or it has lowered its own hard limit, above which nobody lifts it again.
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(life.pid, resource.RLIMIT_NPROC, limits)

    # -- copies -------------------------------------------------------------------------------

    def _spare(self, request: int, session: SessionState, _: Body, __: bytes) -> None:
        self._drop_spare(session)
        self._drop_births(session, "another copy was requested")
        self._check_copy(session)
        pipes = InterpreterPipes()
        birth = InterpreterStart("spare", request, session, pipes, origin=session.life)
        self._copy(birth, keep_rng=True)

    def _drop_spare(self, session: SessionState) -> None:
        spare, session.spare = session.spare, None
        if spare is not None:
            self._forget(spare)
            spare.process.end()
            spare.wires.close()

    def _fork(self, request: int, session: SessionState, body: Body, _: bytes) -> None:
        self._check_copy(session)
        try:
            copy = self._new_session()
        except OSError as error:
            why = f"no directory could be created for the copy: {error}"
            raise InterpreterStartError(why) from error
        try:
            files.copy_tree(session.place.handle, copy.place.handle)
            if session.life is None and self._settings.isolated:
                session_directory.attach_in_new_namespaces(copy.place)
        except OSError as error:
            self._remove(copy)
            raise InterpreterStartError(f"the directory cannot be copied: {error}") from error
        copy.cpu_s = session.used_cpu_s
        if session.life is None:
            self._spawn(request, copy, {}, b"")  # what runs there needs namespaces to run in
            return
        birth = InterpreterStart("copy", request, copy, InterpreterPipes(), origin=session.life)
        self._copy(birth, keep_rng=bool(body.get("keep_rng")))

    def _check_copy(self, session: SessionState) -> None:
        """Raise `InterpreterStartError` where the session cannot be copied now."""
        if (count := len(self._sessions)) >= FORKS_MAX:
            raise InterpreterStartError(
                f"this session has {count} live copies, and the maximum is {FORKS_MAX}"
            )
        if session.life is None:
            return
        count = processes.count_lasting_threads(session.life.pid, within_s=_LAST_BREATH_S)
        if count > 1:
            raise InterpreterStartError(
                f"the interpreter has {count} threads, but a copy would have only one of them; let "
                "the others end first"
            )

    # -- ends ---------------------------------------------------------------------------------

    def _stop(self, request: int, session: SessionState, body: Body, __: bytes) -> None:
        """End an interpreter, with all it started; its spare takes its place."""
        life = session.life
        if life is None or life.number != body["life"]:
            self._reply(request, {"late": True})
            return
        if body.get("hung_up") and processes.poll_end(life.process.pidfd, within_s=_LAST_BREATH_S):
            output = self._bury_dead(session)
        else:
            _, output = self._bury(session)
        self._answer_end(request, session, output)

    def _on_death(self, session: SessionState, life: InterpreterProcess, _: int) -> None:
        """Tell the host of an end that nobody asked for."""
        if session.life is life:
            about = {"died": life.number, "of": session.id}
            self._answer_end(_EVENT, session, {**self._bury_dead(session), **about})

    def _bury_dead(self, session: SessionState) -> Body:
        """Bury an interpreter that died by itself, and say why it did."""
        death, output = self._bury(session)
        status, error = "crash", f"the interpreter {death.text}"
        killed = death.signal == signal.SIGKILL and self._quota.is_used_up(session.cpu_s)
        if death.signal == signal.SIGXCPU or killed:
            session.cpu_s = max(session.cpu_s, self._settings.cpu_s)
            status, error = "limit", self._quota.cpu_text
        return {**output, "status": status, "error": error, "signal": death.signal}

    def _end_over_limit(self, session: SessionState, error: str) -> None:
        if (life := session.life) is not None:
            _, output = self._bury(session)
            about = {"died": life.number, "of": session.id, "status": "limit", "error": error}
            self._answer_end(_EVENT, session, {**output, **about})

    def _answer_end(self, request: int, session: SessionState, body: Body) -> None:
        spare, session.spare = session.spare, None
        fd = None
        if spare is not None:
            try:
                body = {**body, **self._move_in(spare)}
                fd = spare.wires.ours.fileno()
            except InterpreterStartError:
                session.spare = spare
                self._abort_birth(spare, "")
        self._reply(request, body, fd=fd)

    def _bury(self, session: SessionState) -> tuple[ExitStatus, Body]:
        """End the session's interpreter; how it ended, and what it had written."""
        life, session.life = session.life, None
        assert life is not None
        self._selector.unregister(life.process.pidfd)
        death = life.process.end()
        for birth in [b for b in self._births.values() if b.origin is life and b.kind == "copy"]:
            self._abort_birth(birth, f"the original {death.text}")
        session.cpu_s += death.cpu_s
        self._end_strays(session, keep=session.world)
        out, err, truncated = life.output()
        life.wires.close()
        session.worlds.discard(life.world)
        self._share_processes()
        return death, {"stdout": out, "stderr": err, "truncated": truncated}

    def _end_strays(self, session: SessionState, keep: CommandNamespace | None = None) -> None:
        """End what the session's processes left behind, except what lives in `keep`."""
        worlds = session.worlds - {keep.id if keep else 0}
        processes.end_strays(self._list_known(), worlds if self._settings.isolated else None)

    def _close(self, request: int, session: SessionState, _: Body, __: bytes) -> None:
        self._drop_spare(session)
        self._drop_births(session, "the session was closed")
        del self._sessions[session.id]
        for command in list(session.commands.values()):
            self._reply(command.request, {"gone": "the session was closed in the meantime"})
        if self._settings.isolated and not self._sessions and not self._births:
            self._end_with_last(request)
        for command in list(session.commands.values()):
            command.end()
            command.abandon()
        if session.life is not None:
            self._bury(session)
        self._end_strays(session)
        self._remove(session)
        self._reply(request, {})

    def _remove(self, session: SessionState) -> None:
        if session.world is not None:
            session.world.close()
        session.place.close()
        if not self._settings.isolated and os.path.lexists(session.place.path):
            files.remove_tree(session.place.path)

    def _end_with_last(self, request: int) -> NoReturn:
        """End with the last session: our namespaces, its directory in them, end with us."""
        processes.kill(processes.EVERYBODY)
        self._reply(request, {})
        os._exit(0)

    def _leave(self) -> NoReturn:
        for session in self._sessions.values():
            if session.life is not None:
                session.life.process.end()
        processes.end_strays(())
        if not self._settings.isolated:
            files.remove_tree(self._settings.root)
        sys.stderr.flush()
        os._exit(0)

    def _new_session(self) -> SessionState:
        number = self._opened
        self._opened += 1
        limits = self._settings
        if not limits.isolated:
            return SessionState(number, session_directory.make_bare(limits.root, number))
        make = session_directory.mount_directory if number == 0 else session_directory.make_detached
        return SessionState(number, make(limits.root, limits.disk_bytes, limits.files))
