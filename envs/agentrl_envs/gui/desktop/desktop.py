"""One desktop: a screen with its programs, and everything that can be asked of it."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from agentrl.errors import EnvError, SandboxError, ToolError
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.gui.desktop import bubblewrap, container
from agentrl_envs.gui.desktop.launch import HOME, DesktopProcess
from agentrl_envs.gui.desktop.settings import Backend, DesktopSettings
from agentrl_envs.gui.desktop.stage import BARE, DesktopStage
from agentrl_sandbox.control_channel import ControlChannel
from agentrl_sandbox.inside.frames import ChannelFrame

CHANGED_S = 1_704_103_200.0
"""When the files of an episode were changed, as they say: 1 January 2024, 10:00 UTC."""
_STARTS = 2
"""Of a program that closes its window by itself."""
_START: Mapping[Backend, Callable[[DesktopSettings, socket.socket], Awaitable[DesktopProcess]]] = {
    "bubblewrap": bubblewrap.start,
    "docker": container.start,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenImage:
    """Content of the screen: lines of `line_bytes`, pixels of blue, green, red and nothing."""

    width: int
    height: int
    line_bytes: int
    data: bytes


class DesktopSession:
    """A running desktop. Made by `DesktopSession.start`; whoever made it closes it."""

    def __init__(
        self, process: DesktopProcess, end: socket.socket, settings: DesktopSettings
    ) -> None:
        self.settings = settings
        self.served = 0
        """Episodes that began on it."""
        self.touched = False
        """Whether a program on it could run code: then nobody else gets it."""
        self.stage = BARE
        """What was put on it since it was cleared."""
        self._process = process
        self._lost = ""
        self._channel = ControlChannel(
            end, lambda: f"the desktop ended: {process.log.tail() or 'killed'}"
        )
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, settings: DesktopSettings) -> Self:
        """Start a desktop without programs. `ConfigError` where none can be run, or `EnvError`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                try:
                    process = await _START[settings.backend](settings, theirs)
                except BaseException:
                    ours.close()
                    raise
            session = cls(process, ours, settings)
            try:
                await session._channel.greeting(settings.open_s)
            except BaseException:
                await session.close()
                raise
        except SandboxError as error:
            raise EnvError(f"a desktop did not start: {error}") from error
        return session

    @property
    def sound(self) -> bool:
        """Return whether it answers, as far as is known."""
        return not (self._lost or self._channel.ended or self._closing)

    async def ask(
        self, do: str, blob: bytes = b"", *, within_s: float = 0.0, **arguments: Any
    ) -> ChannelFrame:
        """Ask the first process to do something.

        `EnvError` when it does not answer within `within_s` and `call_s`, and ever after;
        `ToolError` for what it refuses to do.
        """
        if self._lost:
            raise EnvError(self._lost)
        try:
            reply = await self._channel.ask(
                {"do": do, **arguments}, blob, within_s=within_s + self.settings.call_s
            )
        except SandboxError as error:
            self._lost = f"the desktop is lost: {do}: {error}"
            raise EnvError(self._lost) from error
        if refused := reply.frame.body.get("refused"):
            raise ToolError(refused)
        return reply.frame

    async def healthy(self) -> bool:
        """Return whether it answers, its X server runs and windows are managed."""
        try:
            return self.sound and bool((await self.ask("ping")).body["alive"])
        except EnvError:
            return False

    async def check(self) -> tuple[str, ...]:
        """Raise `EnvError` unless the desktop is whole; return the programs that crashed on it."""
        status = (await self.ask("ping")).body
        if not status["alive"]:
            self._lost = "the X server or the window manager of this desktop ended"
            raise EnvError(self._lost)
        return tuple(status["crashed"])

    async def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file, by its path in the home directory or a whole path."""
        await self.ask("put", data, path=os.path.join(HOME, path), mode=mode, changed_s=CHANGED_S)

    async def folder(self, path: str) -> None:
        """Make a directory below the home directory."""
        await self.ask("folder", path=os.path.join(HOME, path))

    async def read(self, path: str) -> bytes | None:
        """Return a file, by its path in the home or a whole one; None for none of at most 4 MiB."""
        frame = await self.ask("read", path=os.path.join(HOME, path))
        return frame.blob if frame.body["there"] else None

    async def files(self, folder: str) -> dict[str, str]:
        """Return the entries below a directory of the home: `file`, `folder` or `other` by path."""
        frame = await self.ask("list", root=os.path.join(HOME, folder))
        return dict(frame.body["files"])

    async def program(self, command: list[str]) -> None:
        """Start a program and wait for its window. `EnvError` when none comes within `start_s`."""
        limit_s = self.settings.start_s
        frame = await self.ask("start", command=command, limit_s=limit_s, within_s=limit_s)
        if failed := frame.body.get("failed"):
            raise EnvError(f"a program of the desktop did not start: {failed}")

    async def _show(self, command: list[str]) -> bool:
        """Start a program whose window stays; whether the screen rests.

        On a busy machine one can lose its first window: it is started again.
        """
        for _ in range(_STARTS):
            await self.program(command)
            rests = await self.settle()
            if (await self.ask("ping")).body["windows"]:
                return rests
        raise EnvError(
            f"{command[0]} was started {_STARTS} times, but closed its window before the episode "
            "began each time; start a program of the scene that keeps a window open"
        )

    async def set_up(self, stage: DesktopStage) -> bool:
        """Put files and programs on a bare desktop; whether the screen rests. Raises `EnvError`."""
        self.stage, rests = stage, True
        for path, data in stage.files:
            if path.endswith("/"):
                await self.folder(path)
            else:
                await self.put(path, data)
        for command in stage.programs:
            rests = await self._show([*command])
        return rests

    async def fingerprint(self) -> int:
        """Return a number that is another one when the screen is."""
        return int((await self.ask("fingerprint")).body["is"])

    async def looks_as(self, fingerprint: int) -> bool:
        """Return whether it is whole, all its programs run and its screen is as it was."""
        return not await self.check() and await self.fingerprint() == fingerprint

    async def quit(self) -> bool:
        """Ask the programs of the episode to end; whether all did within `settle_s`."""
        limit_s = self.settings.settle_s
        return bool((await self.ask("quit", limit_s=limit_s, within_s=limit_s)).body["ended"])

    async def settle(self) -> bool:
        """Wait for the screen to rest; whether it did within `settle_s`."""
        still_s, limit_s = self.settings.still_s, self.settings.settle_s
        frame = await self.ask("settle", still_s=still_s, limit_s=limit_s, within_s=limit_s)
        return bool(frame.body["rests"])

    async def picture(self) -> ScreenImage:
        """Return the screen."""
        frame = await self.ask("pixels")
        names = ("width", "height", "line_bytes")
        picture = ScreenImage(**{name: frame.body[name] for name in names}, data=frame.blob)
        if (picture.width, picture.height) != (self.settings.width, self.settings.height):
            self._lost = (
                f"the screen is {picture.width} x {picture.height} but should be "
                f"{self.settings.width} x {self.settings.height}"
            )
            raise EnvError(self._lost)
        return picture

    async def clear(self) -> bool:
        """End the programs of an episode; whether the desktop is as good as a fresh one."""
        limit_s = self.settings.settle_s
        frame = await self.ask("clear", limit_s=limit_s, within_s=limit_s)
        self.stage = BARE
        return bool(frame.body["clean"])

    @property
    def pid(self) -> int:
        """Process id of its first process, as this machine sees it."""
        return self._process.pid

    def memory_bytes(self) -> int | None:
        """Return the memory that it holds, where it is in a cgroup."""
        return self._process.memory_bytes()

    async def close(self) -> None:
        """End it and everything on it. Idempotent; without its caller it ends all the same."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.close()
        await run_in_thread(self._process.clear)
