"""A running desktop as the tasks on it see it: looked at by checkers, prepared by scenes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.errors import EnvError
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.gui.desktop import DesktopSession
from agentrl_envs.gui.observation import DesktopObservationOptions, ElementNumbers, look
from agentrl_envs.gui.world import CommandResult


@dataclass(frozen=True, slots=True)
class CheckedDesktop:
    """A desktop as a `WritableDesktop`."""

    desktop: DesktopSession
    wants: DesktopObservationOptions

    async def read(self, path: str) -> bytes | None:
        return await self.desktop.read(path)

    async def files(self, folder: str) -> Mapping[str, str]:
        return await self.desktop.files(folder)

    async def quit(self) -> bool:
        return await self.desktop.quit()

    async def nodes(self) -> Sequence[AccessibilityNode]:
        wants = replace(self.wants, kinds=("axtree",))
        return (await look(self.desktop, wants, ElementNumbers())).nodes

    async def size(self) -> tuple[int, int]:
        return self.desktop.settings.width, self.desktop.settings.height

    async def put(self, path: str, data: bytes) -> None:
        await self.desktop.put(path, data)

    async def run(self, command: Sequence[str], *, limit_s: float) -> CommandResult:
        frame = await self.desktop.ask("run", command=[*command], limit_s=limit_s, within_s=limit_s)
        size, text = frame.body["out_bytes"], frame.blob
        return CommandResult(
            frame.body["code"],
            text[:size].decode(errors="replace"),
            text[size:].decode(errors="replace"),
        )

    async def start(self, command: Sequence[str], *, waits: bool) -> None:
        if waits:
            await self.desktop.program([*command])
        else:
            frame = await self.desktop.ask("launch", command=[*command])
            if failed := frame.body.get("failed"):
                raise EnvError(f"a program of the desktop did not start: {failed}")
        await self.desktop.settle()

    async def window(self, title: str, do: str, *, strict: bool) -> bool:
        frame = await self.desktop.ask("window", title=title, how=do, strict=strict)
        await self.desktop.settle()
        return bool(frame.body["there"])

    async def ask(self, do: str, **arguments: Any) -> None:
        await self.desktop.ask(do, **arguments)
        await self.desktop.settle()

    async def settle(self) -> bool:
        return await self.desktop.settle()
