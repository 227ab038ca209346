"""Browsers shared by the episodes of a process, with pages made ahead.

    pool.visit(world, screen) ──► a page already there ──► the world begins: a few milliseconds
                              ──► an empty page, ready ──► it loads `start_url`
                              ──► a new context, when neither is left

A browser is replaced when it dies, when it no longer answers, and after `recycle_after` episodes;
its episodes fail with it in the first two cases, and are played to the end in the last.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self

from agentrl.errors import EnvError
from agentrl.scope import shared
from agentrl_envs.web.browser.browser import Browser
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_envs.web.browser.visit import Screen, Visit

if TYPE_CHECKING:
    from playwright.async_api import Playwright

_CLOSED = "this pool of browsers is closed; open another one"


class BrowserPool:
    """Browsers and the places in them. Made by `BrowserPool.open`."""

    def __init__(self, playwright: "Playwright", settings: BrowserSettings) -> None:
        self.settings = settings
        self._playwright = playwright
        self._places = asyncio.Semaphore(settings.browsers * settings.episodes)
        self._browsers: list[Browser | None] = [None] * settings.browsers
        self._starting = [asyncio.Lock() for _ in range(settings.browsers)]
        self._retired: set[Browser] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._homes: dict[Visit, Browser] = {}
        self._closed = False

    @classmethod
    async def open(cls, settings: BrowserSettings) -> Self:
        """Start Playwright; browsers start when they are needed."""
        from playwright.async_api import async_playwright

        return cls(await async_playwright().start(), settings)

    async def visit(self, url: str, screen: Screen, *, reusable: bool) -> tuple[Visit, bool]:
        """Return a page for an episode, and whether it is at `url` already.

        Only with `reusable` is it one that another episode has used. Raises `EnvError` when no
        place comes free in time, `ConfigError` when no browser can be run on this machine.
        """
        if self._closed:
            raise EnvError(_CLOSED)
        try:
            async with asyncio.timeout(self.settings.open_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise EnvError(
                f"no page came free within {self.settings.open_s:g} s: all "
                f"{self.settings.browsers * self.settings.episodes} are in use"
            ) from error
        try:
            return await self._visit(url, screen, reusable)
        except BaseException:
            self._places.release()
            raise

    async def release(self, visit: Visit) -> None:
        """Take a page back: for the next one of its kind, or to be thrown away."""
        browser = self._homes.pop(visit, None)
        if browser is None:
            return
        self._places.release()
        browser.visits.discard(visit)
        url = visit.world.start_url if visit.world is not None and visit.is_reusable() else None
        self._in_background(self._put_back(browser, visit, url))

    def figures(self) -> dict[str, float]:
        """Return how many browsers and pages there are, for metrics."""
        running = [browser for browser in self._browsers if browser is not None]
        return {
            "browsers": len(running) + len(self._retired),
            "visits": len(self._homes),
            "waiting": sum(browser.waiting for browser in running),
        }

    async def rest(self) -> None:
        """Wait until the pages that were given back, and those made ahead, are ready."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def memory_bytes(self) -> int | None:
        """Return what the browsers hold, where cgroups count it."""
        running = [browser.memory_bytes() for browser in self._browsers if browser is not None]
        counted = [held for held in running if held is not None]
        return sum(counted) if counted else None

    async def close(self) -> None:
        """Close every browser and end Playwright. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        running = [*filter(None, self._browsers), *self._retired]
        self._browsers = [None] * len(self._browsers)
        await asyncio.gather(*(browser.close() for browser in running))
        await self._playwright.stop()

    async def _visit(self, url: str, screen: Screen, reusable: bool) -> tuple[Visit, bool]:
        slot = min(range(len(self._browsers)), key=self._load)
        browser = await self._running(slot)
        visit, loaded = (browser.take(url, screen) if reusable else None), True
        if visit is None:
            visit, loaded = browser.take("", screen), False
        if visit is None:
            try:
                visit = await browser.open(screen)
            except EnvError:
                await self._look_after(browser)
                if browser.alive:
                    raise
                # It was dead, and nobody had noticed.
                browser = await self._running(slot)
                visit = await browser.open(screen)
        browser.visits.add(visit)
        browser.served += 1
        self._homes[visit] = browser
        self._in_background(self._warm_up(browser, screen))
        return visit, loaded

    def _load(self, slot: int) -> int:
        browser = self._browsers[slot]
        return 0 if browser is None else len(browser.visits)

    async def _running(self, slot: int) -> Browser:
        async with self._starting[slot]:
            browser = self._browsers[slot]
            if browser is not None and browser.alive and not browser.worn:
                return browser
            if browser is not None:
                self._browsers[slot] = None
                self._retired.add(browser)
                self._in_background(self._end_if_idle(browser))
            fresh = await Browser.start(self._playwright, self.settings)
            if self._closed:
                await fresh.close()
                raise EnvError(_CLOSED)
            self._browsers[slot] = fresh
            return fresh

    async def _put_back(self, browser: Browser, visit: Visit, url: str | None) -> None:
        try:
            if url is not None and browser.alive and browser.waiting < self.settings.episodes:
                await visit.clear()
                browser.put(url, visit)
            elif browser.alive:
                await visit.close()
        except EnvError:
            visit.fail(EnvError("the page was thrown away"))
            await self._look_after(browser)
        finally:
            await self._end_if_idle(browser)

    async def _look_after(self, browser: Browser) -> None:
        """End a browser that no longer answers."""
        if browser.alive and not await browser.is_healthy():
            await browser.close()

    async def _end_if_idle(self, browser: Browser) -> None:
        if browser in self._retired and (not browser.visits or not browser.alive):
            await browser.close()
            self._retired.discard(browser)

    async def _warm_up(self, browser: Browser, screen: Screen) -> None:
        key = ("", screen)
        while browser.alive and not self._closed:
            if len(browser.ready.get(key, [])) >= self.settings.warm or browser.worn:
                return
            try:
                browser.put("", await browser.open(screen))
            except EnvError:
                return

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def open_pool(settings: BrowserSettings) -> tuple[BrowserPool, bool]:
    """Return the browsers of the current scope, or of the caller's own, to be closed by it."""
    found = await shared(("browsers", settings), lambda: BrowserPool.open(settings))
    return (await BrowserPool.open(settings), True) if found is None else (found, False)
