"""One browser process with everything it starts."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, EnvError, blame
from agentrl.runtime.threads import (
    await_to_the_end,
    finish_in_thread,
    make_in_thread,
    run_in_thread,
)
from agentrl_envs.web.browser.context import EpisodeContext, PageScreen
from agentrl_envs.web.browser.launch import WAY_OUT, BrowserCommand, prepare
from agentrl_envs.web.browser.processes import measure_private_bytes
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_envs.web.browser.warm_pages import WarmPages

if TYPE_CHECKING:
    from playwright.async_api import Playwright

_HEALTH_S = 5.0
_GONE = "Connection closed"
"""In what Playwright says once its driver has ended."""


class BrowserProcess:
    """A running Chromium and the driver that speaks to it: neither outlives the other. Made by
    `BrowserProcess.start`."""

    def __init__(
        self, driver: "Playwright", process: Any, command: BrowserCommand, settings: BrowserSettings
    ) -> None:
        self.visits: set[EpisodeContext] = set()
        """In use."""
        self.shelf = WarmPages()
        self.served = 0
        self.grown = False
        """Whether it was seen to hold more than it may between episodes."""
        self._clipboard = asyncio.Lock()
        self._start_driver = driver
        self._process = process
        self._command = command
        self._settings = settings
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, settings: BrowserSettings) -> "BrowserProcess":
        """Start a driver and a browser.

        `ConfigError` where this machine cannot run one as configured, `EnvError` where the driver
        does not start or ends.
        """
        # Every driver has a `stop` of its own: that of the class does nothing.
        driver = await await_to_the_end(_start_driver(within_s=settings.open_s), _stop_driver)
        try:
            browser = await cls._launch(driver, settings)
        except BaseException:
            await _stop_driver(driver)
            raise
        return browser

    @classmethod
    async def _launch(cls, driver: "Playwright", settings: BrowserSettings) -> "BrowserProcess":
        from playwright.async_api import Browser as Process
        from playwright.async_api import Error

        command = await make_in_thread(partial(prepare, settings), BrowserCommand.clear)
        try:
            launching = driver.chromium.launch(
                executable_path=command.executable,
                ignore_default_args=True,
                args=list(command.arguments),
                env=dict(command.environ),
                headless=True,
                timeout=settings.open_s * 1000,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            process = await await_to_the_end(launching, Process.close)
        except BaseException as error:
            await finish_in_thread(command.clear)
            if isinstance(error, Error) and _GONE in str(error):
                raise EnvError(f"the driver of a browser ended: {_summarize(error)}") from error
            if isinstance(error, Error):
                raise ConfigError(
                    f"no browser could be started: {_summarize(error)}; {WAY_OUT}"
                ) from error
            raise
        browser = cls(driver, process, command, settings)
        process.on("disconnected", lambda _: browser._fail_visits())
        return browser

    @property
    def alive(self) -> bool:
        """Return whether it runs, as far as is known, and is not being closed."""
        return self._closing is None and self._process.is_connected()

    @property
    def worn(self) -> bool:
        """Return whether it is time for a fresh one."""
        return self.grown or self.served >= self._settings.recycle_after

    async def open(self, screen: PageScreen) -> EpisodeContext:
        """Return a fresh context; raises `EnvError`."""
        return await EpisodeContext.open(self._process, screen, self._settings, self._clipboard)

    async def is_healthy(self) -> bool:
        """Return whether it answers."""
        if not self.alive:
            return False
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(_HEALTH_S):
                session = await self._process.new_browser_cdp_session()
                await session.send("Browser.getVersion")
                await session.detach()
        except (TimeoutError, Error):
            return False
        return True

    def memory_bytes(self) -> int | None:
        """Return the memory that it holds, where it is in a cgroup."""
        group = self._command.group
        return None if group is None else group.memory_bytes()

    async def watch(self) -> None:
        """Look whether it has grown past what it may hold between episodes."""
        self.grown = (
            self.grown
            or await run_in_thread(self._measure_private_bytes) > self._settings.recycle_bytes
        )

    def _measure_private_bytes(self) -> int:
        """Return the bytes that nobody else could have; it reads a few files."""
        try:
            group = self._command.group
            return (
                measure_private_bytes(self._command.mark)
                if group is None
                else group.private_bytes()
            )
        except OSError:
            return 0  # it is ending

    async def close(self) -> None:
        """End it and everything in it. Idempotent; without its caller it ends all the same."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        from playwright.async_api import Error

        self._fail_visits()
        try:
            async with asyncio.timeout(_HEALTH_S):
                await self._process.close()
        except (TimeoutError, Error):
            pass  # it is killed below
        await run_in_thread(self._command.clear)
        await _stop_driver(self._start_driver)

    def _fail_visits(self) -> None:
        error = EnvError("the browser of this episode ended")
        for visit in self.visits:
            visit.fail(error)
        self.shelf.clear()


async def _start_driver(*, within_s: float) -> "Playwright":
    from playwright.async_api import async_playwright

    with blame(EnvError, "the start of Playwright"):
        async with asyncio.timeout(within_s):
            return await async_playwright().start()


async def _stop_driver(driver: "Playwright") -> None:
    from playwright.async_api import Error

    with suppress(TimeoutError, Error):
        async with asyncio.timeout(_HEALTH_S):
            await driver.stop()


def _summarize(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "[err]" in line]
    return (telling[0].rpartition("[err]")[2].strip() if telling else lines[0])[:300]
