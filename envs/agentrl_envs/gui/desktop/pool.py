"""Desktops shared by the episodes of a process, started ahead and used again.

pool.take() ──► one that is ready and healthy
            ──► a new one, when none is
pool.give() ──► its programs end, its files go, it is ready again
            ──► it is thrown away: worn, unhealthy, or code of an agent ran on it
"""

import asyncio
from typing import Self

from agentrl.errors import EnvError
from agentrl_envs.gui.desktop.desktop import Desktop
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_envs.pooled import Chores, Places

_CLOSED = "this pool of desktops is closed; open another one"


class DesktopPool:
    """At most `desktops` of them. Made by `open`, or by hand; nothing runs before it is taken."""

    def __init__(self, settings: DesktopSettings) -> None:
        self.settings = settings
        self._places = Places("desktop", settings.desktops, within_s=settings.open_s)
        self._ready: list[Desktop] = []
        self._used: set[Desktop] = set()
        self._coming = 0
        self._chores = Chores()
        self._timers: set[asyncio.TimerHandle] = set()
        self._counts = {"started": 0, "reused": 0, "thrown_away": 0}

    @classmethod
    async def open(cls, settings: DesktopSettings) -> Self:
        """Return a pool; desktops start when they are needed."""
        return cls(settings)

    async def take(self) -> Desktop:
        """Return a desktop for an episode.

        Raises `EnvError` when none comes free in time or none starts, `ConfigError` when none can
        be run on this machine.
        """
        if self._chores.closed:
            raise EnvError(_CLOSED)
        await self._places.take()
        try:
            desktop = await self._one_that_is_ready() or await self._started()
        except BaseException:
            self._places.give()
            raise
        desktop.served += 1
        self._used.add(desktop)
        self._chores.begin(self._warm_up())
        return desktop

    async def give(self, desktop: Desktop) -> None:
        """Take a desktop back: for the next episode, or to be thrown away."""
        if desktop in self._used:
            self._used.discard(desktop)
            self._chores.begin(self._put_back(desktop), ending=True)

    async def rest(self) -> None:
        """Wait until the desktops that were given back, and those made ahead, are ready."""
        await self._chores.rest()

    def figures(self) -> dict[str, int]:
        """Return how many desktops there are and were, for metrics."""
        return {"ready": len(self._ready), "used": len(self._used), **self._counts}

    def memory_bytes(self) -> int | None:
        """Return what the desktops hold, where cgroups count it."""
        held = [desktop.memory_bytes() for desktop in (*self._ready, *self._used)]
        counted = [one for one in held if one is not None]
        return sum(counted) if counted else None

    async def close(self) -> None:
        """End every desktop. Idempotent."""
        self._chores.closed = True
        for timer in self._timers:
            timer.cancel()
        await self.rest()
        left = [*self._ready, *self._used]
        self._ready.clear()
        self._used.clear()
        await asyncio.gather(*(desktop.close() for desktop in left))

    async def _one_that_is_ready(self) -> Desktop | None:
        while self._ready:
            desktop = self._ready.pop()
            if await desktop.healthy():
                self._counts["reused"] += desktop.served > 0
                return desktop
            await self._throw_away(desktop)
        return None

    async def _started(self) -> Desktop:
        desktop = await Desktop.start(self.settings)
        self._counts["started"] += 1
        if self._chores.closed:
            await desktop.close()
            raise EnvError(_CLOSED)
        return desktop

    async def _throw_away(self, desktop: Desktop) -> None:
        self._counts["thrown_away"] += 1
        await desktop.close()

    async def _put_back(self, desktop: Desktop) -> None:
        """Clear a desktop; its place is free only then."""
        try:
            worn = desktop.touched or desktop.served >= self.settings.recycle_after
            if worn or self._chores.closed:
                await self._throw_away(desktop)
            elif desktop.sound and await desktop.clear():
                self._keep(desktop)
            else:
                await self._throw_away(desktop)
        except EnvError:
            await self._throw_away(desktop)
        finally:
            self._places.give()

    def _keep(self, desktop: Desktop) -> None:
        """Have a desktop ready, for a while if there are enough."""
        self._ready.append(desktop)
        if len(self._ready) > self.settings.warm:
            loop = asyncio.get_running_loop()
            self._timers = {one for one in self._timers if one.when() > loop.time()}
            self._timers.add(loop.call_later(self.settings.idle_s, self._tidy))

    def _tidy(self) -> None:
        """End what is more than `warm`: those that wait longest."""
        while len(self._ready) > self.settings.warm:
            self._chores.begin(self._throw_away(self._ready.pop(0)), ending=True)

    async def _warm_up(self) -> None:
        if self._coming or len(self._ready) >= self.settings.warm:
            return
        self._coming += 1
        try:
            while not self._chores.closed and len(self._ready) < self.settings.warm:
                if len(self._ready) + len(self._used) >= self.settings.desktops:
                    return
                self._ready.append(await self._started())
        except EnvError:
            return  # whoever needs one will see
        finally:
            self._coming -= 1
