"""The commands of a keeper's sessions: started on request, answered when they are over."""

import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from agentrl_sandbox.inside import kernel, processes
from agentrl_sandbox.inside.command import CommandNamespace, CommandRequest, RunningCommand
from agentrl_sandbox.inside.interpreter_start import SessionState
from agentrl_sandbox.inside.quota import SessionLimits, SessionQuota

Body = dict[str, Any]


class CommandReply(Protocol):
    """Answers a request of the host."""

    def __call__(self, request: int, body: Body, blob: bytes = b"") -> None: ...


class CommandRunner:
    """Runs programs beside interpreters, and ends them with all they started."""

    def __init__(
        self,
        settings: SessionLimits,
        quota: SessionQuota,
        selector: selectors.BaseSelector,
        *,
        reply: CommandReply,
        list_known: Callable[[], set[int]],
    ) -> None:
        self._settings = settings
        self._quota = quota
        self._selector = selector
        self._reply = reply
        self._list_known = list_known
        self._ended: list[RunningCommand] = []
        """Those whose output somebody may still write to."""

    def run(self, request: int, session: SessionState, body: Body, blob: bytes) -> None:
        """Start a command; it is answered when it is over."""
        if session.used_cpu_s >= self._settings.cpu_s:
            self._reply(request, _build_refusal(self._quota.cpu_text))
            return
        home = session.place
        confinement = self._quota.confinement(session.used_cpu_s)
        order = CommandRequest(body["argv"], body["env"], body["cwd"], blob, home.path, confinement)
        timeout_s, output_bytes = body["timeout_s"], self._settings.output_bytes
        finish = partial(self.finish, session)
        command = RunningCommand(request, timeout_s, self._selector, finish, output_bytes)
        try:
            if session.world is None and self._settings.isolated:
                session.world = CommandNamespace(confinement)
                session.worlds.add(session.world.id)
            extra_namespaces = {kernel.CLONE_NEWUSER: session.world.fd} if session.world else {}
            command.start(order, home.namespaces | extra_namespaces)
        except OSError as error:
            why = f"no process could be started for the command: {error}"
            self._reply(request, _build_refusal(why))
            return
        session.commands[request] = command

    def finish(self, session: SessionState, command: RunningCommand, status: str = "ok") -> None:
        """Answer a command that ended, or is to end now."""
        if session.commands.pop(command.request, None) is None:
            return
        death = command.end()
        self._ended.append(command)
        session.cpu_s += death.cpu_s
        body: Body = {"status": status, "error": None, "exit_code": None, **command.output()}
        if status == "timeout":
            body["error"] = f"stopped after {command.timeout_s:g} s"
        elif status == "limit" or death.signal == signal.SIGXCPU:
            body.update(status="limit", error=self._quota.cpu_text)
        elif command.trouble:
            body.update(status="error", error=f"cannot start: {command.trouble}")
        else:
            body["exit_code"] = 128 + death.signal if death.signal else death.code
        if status != "ok" or not self._settings.isolated:
            # What commands left running, those of the interpreter not.
            worlds = {session.world.id} if session.world else None
            processes.end_strays(self._list_known(), worlds)
        body["seconds"] = time.monotonic() - command.started_s
        self._reply(command.request, body)

    def drain(self) -> None:
        """Drop what was written to the output of commands that have ended."""
        self._ended = [command for command in self._ended if command.drain()]

    def cancel(self, request: int, session: SessionState, body: Body, _: bytes) -> None:
        """End a command that nobody waits for any more."""
        if (command := session.commands.get(body["cancels"])) is not None:
            self.finish(session, command, "timeout")


def _build_refusal(error: str) -> Body:
    nothing = {"stdout": "", "stderr": "", "truncated": False, "exit_code": None, "seconds": 0.0}
    return {"status": "limit", "error": error, **nothing}
