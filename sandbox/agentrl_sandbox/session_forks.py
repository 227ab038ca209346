"""Host side of an opened session and its forks: the keeper's channel and its listeners."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.admission import PoolAdmission
from agentrl_sandbox.cgroup.sandbox_cgroups import SessionCgroup
from agentrl_sandbox.control_channel import ControlChannel, ControlReply
from agentrl_sandbox.interpreter_channel import InterpreterChannel

KEEPER_GONE = (
    "the init process of the sandbox session ended, and the session is lost; open a new one"
)
GRACE_S = 20.0
"""Deadline of a keeper for what takes no time, before it counts as gone."""


class SessionForks:
    """A keeper's channel, and the sessions (one opened, the others its forks) that still use it."""

    def __init__(
        self, settings: SandboxSettings, admission: PoolAdmission, fence: SessionCgroup | None
    ) -> None:
        self.settings = settings
        self.admission = admission
        self._fence = fence
        self.channel: ControlChannel
        self._members: dict[int, tuple[Callable[[ControlReply], None], Callable[[], None]]] = {}

    @property
    def members(self) -> int:
        """Number of sessions."""
        return len(self._members)

    def join(
        self, number: int, on_death: Callable[[ControlReply], None], hang_up: Callable[[], None]
    ) -> None:
        """Call a session when its interpreter dies, and when the keeper is gone."""
        self._members[number] = on_death, hang_up
        if self._fence is not None and len(self._members) > 1:
            self._fence.resize(len(self._members))

    def leave(self, number: int) -> None:
        """Let a session go."""
        self._members.pop(number, None)
        if self._fence is not None:
            self._fence.resize(len(self._members))

    def on_event(self, event: ControlReply) -> None:
        """Tell the session whose interpreter has died."""
        member = self._members.get(event.frame.body["of"])
        if member is None:
            event.drop()
        else:
            member[0](event)

    def on_end(self) -> None:
        """Hear that the keeper is gone, and everything behind it with it."""
        for _, hang_up in self._members.values():
            hang_up()
        if self._fence is not None:
            self._fence.close()

    def open_line(self, reply: ControlReply) -> InterpreterChannel | None:
        """Return the line that a reply brought, if it brought one."""
        if not reply.fds:
            return None
        end, body = socket.socket(fileno=reply.fds[0]), reply.frame.body
        output_bytes = self.settings.limits.output_bytes
        return InterpreterChannel(
            end, life=body["life"], nonce=body["nonce"], output_bytes=output_bytes
        )

    async def ask(
        self, body: dict[str, Any], blob: bytes = b"", *, extra_s: float = 0.0
    ) -> ControlReply:
        """Ask the keeper, who is never asked again once it missed a deadline."""
        try:
            reply = await self.channel.ask(body, blob, within_s=GRACE_S + extra_s)
        except SandboxError:
            self.channel.close()
            raise
        if "gone" in reply.frame.body:
            raise SandboxError(reply.frame.body["gone"])
        return reply

    def was_short_of_memory(self) -> bool:
        """Return whether the kernel killed something here for want of memory."""
        return self._fence is not None and self._fence.was_short_of_memory()

    def drop_copy(self, asked: "asyncio.Future[ControlReply]") -> None:
        """Close a copy whose caller was cancelled."""
        if asked.cancelled() or asked.exception() is not None:
            return
        reply = asked.result()
        reply.drop()
        if "session" in reply.frame.body:
            self.tell({"op": "close", "session": reply.frame.body["session"]})

    def tell(self, body: dict[str, Any]) -> None:
        """Send something whose reply nobody waits for."""
        if not self.channel.ended:
            self.channel.post(body)[1].cancel()
