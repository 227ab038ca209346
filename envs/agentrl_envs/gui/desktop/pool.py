"""Desktops shared by the episodes of a process, started ahead and used again.

    pool.take(stage) ──► one on which the stage is set already, and that looks as it was left
                     ──► a bare one that is ready and healthy
                     ──► a new one, when there is none and may be one more
                     ──► one that was set for others, cleared
    pool.give()      ──► its programs end, its files go, it is ready again
                     ──► it is thrown away: worn, unhealthy, or code of an agent ran on it
    pool.expect()    ──► the next stages are set on desktops that nobody uses

There are never more than `desktops`, whatever they are at: lent, ready, set, starting or ending.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self

from agentrl.errors import EnvError
from agentrl.runtime.closing import close_all
from agentrl_envs.gui.desktop.desktop import DesktopSession
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_envs.gui.desktop.stage import (
    BARE,
    DesktopStage,
    find_latest,
    find_missing,
    find_unwanted,
)
from agentrl_envs.pooled import BackgroundTasks, PoolPermits

_CLOSED = "this pool of desktops is closed; open a new one"


class DesktopPool:
    """At most `desktops` of them. Made by `open`, or by hand; nothing runs before it is taken."""

    def __init__(
        self,
        settings: DesktopSettings,
        *,
        start: Callable[[DesktopSettings], Awaitable[DesktopSession]] = DesktopSession.start,
    ) -> None:
        self.settings = settings
        self._start = start
        self._places = PoolPermits("desktop", settings.desktops, within_s=settings.open_s)
        self._all: set[DesktopSession] = set()
        self._starting = 0
        self._ready: list[DesktopSession] = []
        self._used: set[DesktopSession] = set()
        self._expected: list[DesktopStage] = []
        self._known_s = 0.0
        self._setting: list[DesktopStage] = []
        """What is being set on desktops right now."""
        self._unfit: set[int] = set()
        """Hashes of stages that could not be set, or whose screen does not rest."""
        self._set: dict[DesktopSession, int] = {}
        """Those on which a stage is set, the first one first, and the fingerprint of its screen."""
        self._changed = asyncio.Event()
        self._chores = BackgroundTasks()
        self._warming = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._counts = {"started": 0, "reused": 0, "thrown_away": 0, "set": 0, "set_taken": 0}

    @classmethod
    async def open(cls, settings: DesktopSettings) -> Self:
        """Return a pool; desktops start when they are needed."""
        return cls(settings)

    async def take(self, stage: DesktopStage = BARE) -> DesktopSession:
        """Return a desktop for an episode, bare or with `stage` on it: see its own `stage`.

        Raises `EnvError` when none comes free in time or none starts, `ConfigError` when none can
        be run on this machine.
        """
        if self._chores.closed:
            raise EnvError(_CLOSED)
        await self._places.take()
        if stage in self._expected:
            self._expected.remove(stage)
        try:
            desktop = await self._find_desktop(stage)
        except BaseException:
            self._places.give()
            raise
        self._counts["reused"] += desktop.served > 0
        desktop.served += 1
        self._used.add(desktop)
        self._make_ready()
        return desktop

    async def give(self, desktop: DesktopSession) -> None:
        """Take a desktop back: for the next episode, or to be thrown away."""
        if desktop in self._used:
            self._used.discard(desktop)
            self._chores.begin(self._restore(desktop), ending=True)

    def expect(self, stages: Sequence[DesktopStage], *, known_s: float | None = None) -> None:
        """Say which episodes begin next: `staged` of them find their desktops set.

        `known_s` is when that was so, by `time.monotonic`, or now; what was so later holds.
        """
        known_s = time.monotonic() if known_s is None else known_s
        if known_s < self._known_s:
            return
        self._known_s = known_s
        self._expected = [*stages[: self.settings.staged]]
        self._make_ready()

    async def wait_until_ready(self) -> None:
        """Wait until the desktops that were given back, and those made ahead, are ready."""
        await self._chores.wait()

    def figures(self) -> dict[str, int]:
        """Return the numbers of desktops, now and so far, for metrics.

        `staged` of now wait with a stage set; `set` is how often one was, `set_taken` how many of
        those an episode took.
        """
        now = {"ready": len(self._ready), "staged": len(self._set), "used": len(self._used)}
        return {**now, **self._counts}

    def memory_bytes(self) -> int | None:
        """Return the memory that the desktops hold, where cgroups count it."""
        sizes = [desktop.memory_bytes() for desktop in self._all]
        counted = [one for one in sizes if one is not None]
        return sum(counted) if counted else None

    async def close(self) -> None:
        """End every desktop. Idempotent."""
        self._chores.closed = True
        for timer in self._timers:
            timer.cancel()
        desktops = [*self._all]
        for collection in (self._ready, self._used, self._set):
            collection.clear()
        try:
            await close_all(desktops)
        finally:
            self._all.clear()
            self._changed.set()
            await self.wait_until_ready()

    # -- which one --------------------------------------------------------------------------------

    async def _find_desktop(self, stage: DesktopStage) -> DesktopSession:
        while not self._chores.closed:
            if (desktop := await self._take_staged(stage)) is not None:
                return desktop
            # What is set for it right now is there sooner than another one would be.
            if stage not in self._setting:
                if (desktop := await self._take_ready()) is not None:
                    return desktop
                if self._has_room:
                    return await self._start_one()
                if self._set:
                    desktop = self._take_unset(find_latest(self._stages, self._expected))
                    if await self._fits(desktop, desktop.clear()):
                        return desktop
                    continue
            await self._wait_for_change()
        raise EnvError(_CLOSED)

    @property
    def _has_room(self) -> bool:
        return len(self._all) + self._starting < self.settings.desktops

    @property
    def _stages(self) -> list[DesktopStage]:
        return [desktop.stage for desktop in self._set]

    async def _take_staged(self, stage: DesktopStage) -> DesktopSession | None:
        """Return a desktop on which a stage is set, if there is one that is as it was left."""
        while stage in (stages := self._stages):
            desktop = [*self._set][stages.index(stage)]
            looks = self._set.pop(desktop)
            if await self._fits(desktop, desktop.looks_as(looks)):
                self._counts["set_taken"] += 1
                return desktop
        return None

    async def _take_ready(self) -> DesktopSession | None:
        while self._ready:
            desktop = self._ready.pop()
            if await self._fits(desktop, desktop.healthy()):
                return desktop
        return None

    def _take_unset(self, at: int) -> DesktopSession:
        desktop = [*self._set][at]
        del self._set[desktop]
        return desktop

    async def _fits(self, desktop: DesktopSession, asked: Coroutine[Any, Any, bool]) -> bool:
        """Return the answer about a desktop; one that does not fit is thrown away."""
        try:
            if await asked:
                return True
        except EnvError:
            pass
        except BaseException:
            self._chores.begin(self._discard(desktop), ending=True)
            raise
        await self._discard(desktop)
        return False

    async def _start_one(self) -> DesktopSession:
        self._starting += 1
        try:
            desktop = await self._start(self.settings)
        finally:
            self._starting -= 1
            self._changed.set()
        self._counts["started"] += 1
        if self._chores.closed:
            await desktop.close()
            raise EnvError(_CLOSED)
        self._all.add(desktop)
        return desktop

    async def _discard(self, desktop: DesktopSession) -> None:
        self._counts["thrown_away"] += 1
        try:
            await desktop.close()
        finally:
            self._all.discard(desktop)
            self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(self.settings.open_s):
                await self._changed.wait()
        except TimeoutError as error:
            raise EnvError(
                f"no desktop was ready within {self.settings.open_s:g} s: {self.figures()}"
            ) from error

    # -- while nobody waits -----------------------------------------------------------------------

    async def _restore(self, desktop: DesktopSession) -> None:
        """Clear a desktop; its place is free only then."""
        try:
            worn = desktop.touched or desktop.served >= self.settings.recycle_after
            if worn or self._chores.closed:
                await self._discard(desktop)
            elif await self._fits(desktop, desktop.clear()):
                self._keep(desktop)
        finally:
            self._places.give()
            self._changed.set()
        self._make_ready()

    def _keep(self, desktop: DesktopSession) -> None:
        """Have a desktop ready, for a while if there are enough."""
        self._ready.append(desktop)
        if len(self._ready) > self.settings.warm:
            self._tidy_later()

    def _tidy_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timers = {one for one in self._timers if one.when() > loop.time()}
        self._timers.add(loop.call_later(self.settings.idle_s, self._tidy))

    def _tidy(self) -> None:
        """End what is more than `warm`, those that wait longest, and what nobody expects."""
        while len(self._ready) > self.settings.warm:
            self._chores.begin(self._discard(self._ready.pop(0)), ending=True)
        while (at := find_unwanted(self._stages, self._expected)) is not None:
            self._chores.begin(self._discard(self._take_unset(at)), ending=True)

    def _make_ready(self) -> None:
        """Begin to set what is expected, and to start what is to be kept ready."""
        if self._chores.closed:
            return
        for stage in find_missing(self._expected, [*self._setting, *self._stages]):
            if hash(stage) not in self._unfit:
                self._setting.append(stage)
                self._chores.begin(self._set_ahead(stage))
        self._chores.begin(self._warm_up())

    async def _set_ahead(self, stage: DesktopStage) -> None:
        """Set a stage on a desktop that nobody uses, if there is or may be one."""
        try:
            if (desktop := await self._find_spare()) is None:
                return
            if await self._fits(desktop, self._set_stage(desktop, stage)):
                self._counts["set"] += 1
                self._tidy_later()
            else:
                self._unfit.add(hash(stage))
        except EnvError:
            return  # whoever needs one will see
        finally:
            self._setting.remove(stage)
            self._changed.set()

    async def _set_stage(self, desktop: DesktopSession, stage: DesktopStage) -> bool:
        if not await desktop.set_up(stage):
            return False
        self._set[desktop] = await desktop.fingerprint()
        return True

    async def _find_spare(self) -> DesktopSession | None:
        while (at := find_unwanted(self._stages, self._expected)) is not None:
            desktop = self._take_unset(at)
            if await self._fits(desktop, desktop.clear()):
                return desktop
        if (desktop := await self._take_ready()) is not None:
            return desktop
        return await self._start_one() if self._has_room else None

    async def _warm_up(self) -> None:
        if self._warming:
            return
        self._warming = True
        try:
            while not self._chores.closed and len(self._ready) < self.settings.warm:
                if not self._has_room:
                    return
                self._ready.append(await self._start_one())
                self._make_ready()  # what had no room while it started
        except EnvError:
            return  # whoever needs one will see
        finally:
            self._warming = False
