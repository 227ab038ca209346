"""Browsers shared by the episodes of a process, with pages made ahead.

    pool.visit(world, screen) ──► a page that is there  ──► the world begins: a few milliseconds
                              ──► an empty page, ready  ──► it loads `start_url`
                              ──► a new context, when neither is left

A page is there because an episode has left it that way (`EpisodeSite.reusable`), or because it was
loaded while nobody waited (`EpisodeSite.ahead`).

A browser is replaced, with its driver, when either dies and when it no longer answers, and its
episodes fail with it;
after `recycle_after` episodes and when it holds more than `recycle_bytes` it gets no new ones, and
ends with its last.
"""

import asyncio
from typing import Self

from agentrl.errors import EnvError
from agentrl.runtime.closing import close_all
from agentrl_envs.pooled import BackgroundTasks, PoolPermits
from agentrl_envs.web.browser.browser import BrowserProcess
from agentrl_envs.web.browser.context import EpisodeContext, PageScreen
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_envs.web.browser.warm_pages import PageOptions
from agentrl_envs.web.episode_site import EpisodeSite

_CLOSED = "this pool of browsers is closed; open a new one"


class BrowserPool:
    """Browsers and the places in them. Made by `BrowserPool.open`."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        count = settings.browsers * settings.episodes
        self._places = PoolPermits("page", count, within_s=settings.open_s)
        self._browsers: list[BrowserProcess | None] = [None] * settings.browsers
        self._starting = [asyncio.Lock() for _ in range(settings.browsers)]
        self._retired: set[BrowserProcess] = set()
        self._chores = BackgroundTasks()
        self._homes: dict[EpisodeContext, BrowserProcess] = {}

    @classmethod
    async def open(cls, settings: BrowserSettings) -> Self:
        """Return an empty pool; browsers start when they are needed, each with its driver."""
        return cls(settings)

    async def visit(
        self, world: EpisodeSite, screen: PageScreen, *, action_ms: float | None = None
    ) -> tuple[EpisodeContext, bool]:
        """Return a page for an episode, and whether it is at the world's `start_url` already.

        With `action_ms`, its time stands still but for so many milliseconds with every action.
        Raises `EnvError` when no place comes free in time, `ConfigError` when no browser can be run
        on this machine.
        """
        return await self._take_page(_options_of(world, screen, action_ms))

    async def blank(self, screen: PageScreen, *, action_ms: float | None = None) -> EpisodeContext:
        """Return an empty page in a context of its own; raises as `visit` does."""
        return (await self._take_page(PageOptions("", screen, action_ms=action_ms)))[0]

    def prepare(self, visit: EpisodeContext, world: EpisodeSite) -> None:
        """Make the pages ready that were taken for an episode, now that nobody waits for it."""
        if (browser := self._homes.get(visit)) is not None:
            place = _options_of(world, visit.screen, visit.action_ms)
            self._chores.begin(self._prepare(browser, place, world))

    async def _take_page(self, place: PageOptions) -> tuple[EpisodeContext, bool]:
        if self._chores.closed:
            raise EnvError(_CLOSED)
        await self._places.take()
        try:
            return await self._choose_page(place)
        except BaseException:
            self._places.give()
            raise

    async def release(self, visit: EpisodeContext) -> None:
        """Take a page back: for the next one of its kind, or to be thrown away."""
        browser = self._homes.pop(visit, None)
        if browser is None:
            return
        self._places.give()
        browser.visits.discard(visit)
        url = visit.world.start_url if visit.world is not None and visit.is_reusable() else None
        self._chores.begin(self._return_page(browser, visit, url))

    def figures(self) -> dict[str, float]:
        """Return the numbers of browsers and pages, for metrics."""
        running = [browser for browser in self._browsers if browser is not None]
        return {
            "browsers": len(running) + len(self._retired),
            "visits": len(self._homes),
            "waiting": sum(len(browser.shelf) for browser in running),
        }

    async def rest(self) -> None:
        """Wait until the pages that were given back, and those made ahead, are ready."""
        await self._chores.wait()

    def memory_bytes(self) -> int | None:
        """Return the memory that the browsers hold, where cgroups count it."""
        running = [browser.memory_bytes() for browser in self._browsers if browser is not None]
        counted = [size_bytes for size_bytes in running if size_bytes is not None]
        return sum(counted) if counted else None

    async def close(self) -> None:
        """Close every browser with its driver. Idempotent."""
        if self._chores.closed:
            return
        self._chores.closed = True
        await self._chores.cancel()
        running = [*filter(None, self._browsers), *self._retired]
        self._browsers = [None] * len(self._browsers)
        await close_all(running)

    async def _choose_page(self, place: PageOptions) -> tuple[EpisodeContext, bool]:
        slot = min(range(len(self._browsers)), key=self._count_visits)
        browser = await self._find_running(slot)
        visit, loaded = browser.shelf.take(place), True
        if visit is None:
            visit, loaded = browser.shelf.take(PageOptions("", place.screen)), False
        if visit is None:
            try:
                visit = await browser.open(place.screen)
            except EnvError:
                await self._look_after(browser)
                if browser.alive:
                    raise
                # It was dead, and nobody had noticed.
                browser = await self._find_running(slot)
                visit = await browser.open(place.screen)
        browser.visits.add(visit)
        browser.served += 1
        self._homes[visit] = browser
        visit.action_ms = place.action_ms
        return visit, loaded

    def _count_visits(self, slot: int) -> int:
        browser = self._browsers[slot]
        return 0 if browser is None else len(browser.visits)

    async def _find_running(self, slot: int) -> BrowserProcess:
        async with self._starting[slot]:
            browser = self._browsers[slot]
            if browser is not None and browser.alive and not browser.worn:
                return browser
            if browser is not None:
                self._browsers[slot] = None
                self._retired.add(browser)
                self._chores.begin(self._end_if_idle(browser))
            fresh = await BrowserProcess.start(self.settings)
            if self._chores.closed:
                await fresh.close()
                raise EnvError(_CLOSED)
            self._browsers[slot] = fresh
            return fresh

    async def _return_page(
        self, browser: BrowserProcess, visit: EpisodeContext, url: str | None
    ) -> None:
        try:
            fits = url is not None and browser.alive and not browser.worn
            if url is not None and fits and not await visit.is_spoilt():
                await visit.clear()
                await self._keep(browser, url, visit)
            elif browser.alive:
                await visit.close()
            await browser.watch()
        except EnvError:
            visit.fail(EnvError("the page was discarded"))
            await self._look_after(browser)
        finally:
            await self._end_if_idle(browser)

    async def _keep(self, browser: BrowserProcess, url: str, visit: EpisodeContext) -> None:
        browser.shelf.put(url, visit)
        if (oldest := browser.shelf.surplus(self.settings.episodes)) is not None:
            await oldest.close()

    async def _look_after(self, browser: BrowserProcess) -> None:
        if browser.alive and not await browser.is_healthy():
            await browser.close()

    async def _end_if_idle(self, browser: BrowserProcess) -> None:
        if browser in self._retired and (not browser.visits or not browser.alive):
            await browser.close()
            self._retired.discard(browser)

    async def _prepare(
        self, browser: BrowserProcess, place: PageOptions, world: EpisodeSite
    ) -> None:
        empty = PageOptions("", place.screen)
        try:
            await self._load_ahead(browser, place, world)
            while self._is_current(browser) and browser.shelf.count(empty) < self.settings.warm:
                browser.shelf.put("", await browser.open(place.screen))
        except EnvError:
            return  # whoever needs a page makes it, and hears why that fails

    async def _load_ahead(
        self, browser: BrowserProcess, place: PageOptions, world: EpisodeSite
    ) -> None:
        if not self._is_current(browser) or browser.shelf.count(place):
            return
        if world.reusable or (loader := world.ahead()) is None:
            return
        try:
            empty = PageOptions("", place.screen)
            visit = browser.shelf.take(empty) or await browser.open(place.screen)
            visit.action_ms = place.action_ms
            try:
                await visit.load(loader)
                await visit.tab.settle()
                visit.world = None
            except EnvError:
                await visit.close()
                raise
        finally:
            await loader.close()
        await self._keep(browser, world.start_url, visit)

    def _is_current(self, browser: BrowserProcess) -> bool:
        return browser.alive and not browser.worn and not self._chores.closed


def _options_of(world: EpisodeSite, screen: PageScreen, action_ms: float | None) -> PageOptions:
    return PageOptions(world.start_url, screen, used_too=world.reusable, action_ms=action_ms)
