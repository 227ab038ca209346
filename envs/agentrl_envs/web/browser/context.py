"""One episode's part of a browser: a context with its tabs, and the world behind them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agentrl.errors import EnvError, blame
from agentrl_envs.web.browser.page import BrowserPage
from agentrl_envs.web.browser.policy import is_within
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_envs.web.browser.traffic import answer
from agentrl_envs.web.episode_site import EpisodeSite

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Page

T = TypeVar("T")

DIALOGS = 50
"""That a page may open between two actions; one that opens more does nothing else."""
NOTICES = 5
NOTICE_CHARACTERS = 500
_NOTHING = {"text/plain": ""}

Start = Literal["new", "ahead", "kept"]
"""A page was loaded for the episode, or before there was one, or had served another one."""


@dataclass(frozen=True, slots=True)
class PageScreen:
    """Size of the screen that a page is drawn on."""

    width: int = 1024
    height: int = 768


@dataclass(frozen=True, slots=True)
class SiteStorage:
    """Data that a browser keeps of a site."""

    cookies: Any
    """As Playwright has them."""
    kept: dict[str, Any]
    """Local and session storage, by origin."""
    copied: dict[str, str]
    """The texts that were copied last, by type."""


class EpisodeContext:
    """A context of its own, used by one episode at a time. Made by `EpisodeContext.open`."""

    def __init__(
        self,
        context: "BrowserContext",
        screen: PageScreen,
        settings: BrowserSettings,
        clipboard: asyncio.Lock,
    ) -> None:
        self.screen = screen
        self.tabs: list[BrowserPage] = []
        self.world: EpisodeSite | None = None
        self.notices: list[str] = []
        """What happened that the page does not show, since it was last told."""
        self.action_ms: float | None = None
        """The page's time that passes with an action; None lets it have the real one."""
        self.used = False
        """Whether an episode has been on it."""
        self.origin: Start = "new"
        """How the page that its last episode began on came to be there."""
        self._context = context
        self._settings = settings
        self._clipboard = clipboard
        self._copied = _NOTHING
        self._keeping = ""
        """Identifier of the script that puts a copy's storage there; empty without one."""
        self.at = 0
        """Number of the tab in front, from 0."""
        self._dialogs = 0
        self._ours: set[Page] = set()
        self._broken: EnvError | None = None

    @classmethod
    async def open(
        cls, browser: Any, screen: PageScreen, settings: BrowserSettings, clipboard: asyncio.Lock
    ) -> "EpisodeContext":
        """Make a context with one empty page; `clipboard` is held by who uses the browser's."""
        with blame(EnvError, "a new page"):
            async with asyncio.timeout(settings.open_s):
                context = await browser.new_context(
                    viewport={"width": screen.width, "height": screen.height},
                    accept_downloads=False,
                    service_workers="block",
                    permissions=[],
                    locale="en-US",
                    timezone_id="UTC",
                )
                visit = cls(context, screen, settings, clipboard)
                context.on("page", visit._on_page)
                try:
                    visit.tabs.append(await visit._new_tab())
                except BaseException:
                    with suppress(EnvError):
                        await visit.close()
                    raise
        return visit

    @property
    def tab(self) -> BrowserPage:
        """Return the tab that is in front."""
        return self.tabs[self.at]

    @property
    def stepped(self) -> bool:
        """Return whether the page's time goes on with the actions."""
        return self.action_ms is not None

    @property
    def sound(self) -> bool:
        """Return whether nothing has broken so far."""
        return self._broken is None and not any(tab.broken.done() for tab in self.tabs)

    async def begin(self, world: EpisodeSite, *, loaded: bool) -> str:
        """Let a world be what is behind the pages; return the goal. Raises `EnvError`.

        With `loaded`, the page is on the world's `start_url` already.
        """
        self.origin = "new" if not loaded else "kept" if self.used else "ahead"
        self.used = True
        if loaded:
            self.world = world
        else:
            await self.load(world)
        with blame(EnvError, f"the beginning at {world.start_url}"):
            _, goal = await asyncio.gather(self.tab.run("forget"), world.begin(self.tab))
        # Nothing is loading on a page that was there before.
        settled = self.tab.settle(calm_frames=1 if loaded else 2)
        await asyncio.gather(settled, self.tab.send("Page.resetNavigationHistory"))
        await self._let_time_pass()
        self.notices.clear()
        self._copied = _NOTHING
        return goal

    async def load(self, world: EpisodeSite) -> None:
        """Open the world's `start_url`, and let it answer. Raises `EnvError`."""
        self.world = world
        await self.go(world.start_url)
        await self.tab.wait_until_loaded()
        if (where := self.tab.url) == "about:blank":
            detail = "; ".join(self.notices) or "nothing answered"
            raise EnvError(f"{world.start_url} did not open, and the page is {where}: {detail}")

    async def go(self, url: str) -> str:
        """Take the tab in front somewhere; return what was in the way, if anything."""
        if self.stepped:
            await self.tab.stop_clock()
        reply = await self.tab.send("Page.navigate", url=url)
        return reply.get("errorText", "") if not self.notices else ""

    async def go_back(self) -> bool:
        """Go to the page before; whether there is one."""
        history = await self.tab.send("Page.getNavigationHistory")
        at: int = history["currentIndex"] - 1
        if at < 0 or not self._is_within(history["entries"][at]["url"]):
            return False
        entry = history["entries"][at]["id"]
        await self.tab.send("Page.navigateToHistoryEntry", entryId=entry)
        return True

    async def settle(self) -> None:
        """Wait for the tab in front to come to rest, and for windows that it opened as tabs.

        Where the page's time goes on with the actions, that of one passes.
        """
        await self.tab.settle()
        await self._take_windows()
        if await self._let_time_pass():
            await self._take_windows()
        self._dialogs = 0

    async def wait(self, ms: float) -> None:
        """Wait for so much of the page's time."""
        if self.stepped:
            await self.tab.pass_time(ms)
        else:
            await asyncio.sleep(ms / 1000)

    @asynccontextmanager
    async def hold_clipboard(self) -> AsyncGenerator[bool]:
        """Have what the episode copied in the browser's clipboard; yield whether it is there."""
        async with self._clipboard:
            yield await self.tab.run("offer", self._copied, gesture=True)

    async def add_tab(self, url: str) -> str:
        """Open a tab at an address and bring it to the front; return why not, if not."""
        if len(self.tabs) > self._settings.tabs:
            return f"at most {len(self.tabs)} tabs may be open; close one first"
        tab = await self._call("a new tab", self._new_tab())
        self.tabs.append(tab)
        self.at = len(self.tabs) - 1
        return await self.go(url)

    async def switch(self, at: int) -> None:
        """Bring a tab to the front."""
        self.at = at
        await self.tab.call("bring to front", self.tab.page.bring_to_front())

    async def close_tab(self) -> None:
        """Close the tab in front; there must be another."""
        tab = self.tabs.pop(self.at)
        self._ours.discard(tab.page)
        await self._call("close a tab", tab.page.close())
        await self.switch(max(0, self.at - 1))

    def take_notices(self) -> list[str]:
        """Return the pending notices, each once."""
        notices, self.notices[:] = list(self.notices), []
        return notices

    async def storage(self) -> SiteStorage:
        """Return the cookies, and what the page in front keeps for its origin."""
        cookies = await self._call("cookies", self._context.cookies())
        page_storage = await self.tab.evaluate(_KEPT)
        return SiteStorage(cookies=cookies, kept=dict(page_storage), copied=self._copied)

    async def restore(self, storage: SiteStorage) -> None:
        """Put cookies, and what a page keeps, there before the page is loaded; an episode goes on
        with it."""
        self.used = True
        self._copied = storage.copied
        self.tab.has_cookies = bool(storage.cookies)
        if storage.cookies:
            await self._call("cookies", self._context.add_cookies(storage.cookies))
        if any(any(areas.values()) for areas in storage.kept.values()):
            script = f"({_KEEP})({json.dumps(storage.kept)})"
            added = await self.tab.send("Page.addScriptToEvaluateOnNewDocument", source=script)
            self._keeping = added["identifier"]

    def is_reusable(self) -> bool:
        """Return whether another episode of the same kind may go on with this page."""
        world = self.world
        if world is None or not (world.reusable and self.sound):
            return False
        return len(self.tabs) == 1 and self.tab.url.partition("#")[0] == world.start_url

    async def is_spoilt(self) -> bool:
        """Return whether something that is not the page's own was to run on it."""
        return await self.tab.run("refusals") > 0

    async def clear(self) -> None:
        """Forget the episode: its world, its cookies and storage, where the mouse was, how far the
        page was scrolled, and what followed # in its address."""
        world, self.world = self.world, None
        tab = self.tab
        if self._keeping:
            script, self._keeping = self._keeping, ""
            await tab.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        await tab.evaluate(_CLEAR)
        if world is not None:
            for origin in world.origins:
                await tab.send("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        await tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.notices.clear()
        tab.popups.clear()

    async def close(self) -> None:
        """Close the context with everything in it. Raises `EnvError` where that takes too long."""
        self.world = None
        await self._call("close a context", self._context.close())

    def fail(self, error: EnvError) -> None:
        """Let everybody who waits for one of the pages have an error."""
        self._broken = error
        for tab in self.tabs:
            tab.fail(error)

    # -- what happens by itself -------------------------------------------------------------------

    async def _new_tab(self) -> BrowserPage:
        page = await self._context.new_page()
        self._ours.add(page)
        page.on("dialog", self._on_dialog)
        tab = await BrowserPage.open(page, self._settings)
        if self.tabs:
            tab.has_cookies = False
        tab.on_request(self._on_request)
        tab.on_copied = self._on_copied
        return tab

    def _on_copied(self, texts: dict[str, str]) -> None:
        self._copied = texts

    async def _on_request(self, tab: BrowserPage, paused: Mapping[str, Any]) -> None:
        refusal = await answer(tab, paused, self.world)
        in_front = paused.get("frameId") == tab.frame and paused.get("resourceType") == "Document"
        if refusal and in_front:
            self._notice(refusal)

    async def _on_dialog(self, dialog: "Dialog") -> None:
        """Dismiss what a page asks; leaving a page is allowed."""
        from playwright.async_api import Error

        self._dialogs += 1
        if self._dialogs > DIALOGS:
            self.fail(EnvError(f"the page opened more than {DIALOGS} dialogs in a row"))
        if dialog.type != "beforeunload":
            text = dialog.message[:200].encode("utf-8", "replace").decode()
            self._notice(f"the page said: {text}")
        try:
            await (dialog.accept() if dialog.type == "beforeunload" else dialog.dismiss())
        except Error:
            return  # it is gone, with its page

    async def _on_page(self, page: "Page") -> None:
        from playwright.async_api import Error

        if await page.opener() is None:
            return
        try:
            await page.close()
        except Error:
            return

    async def _let_time_pass(self) -> bool:
        """Let the time of an action pass where it does not by itself; whether that did anything."""
        if self.action_ms is None or not await self.tab.pass_time(self.action_ms):
            return False
        await self.tab.settle(calm_frames=1)
        return True

    async def _take_windows(self) -> None:
        for tab in list(self.tabs):
            while tab.popups:
                await self._open_instead(tab.popups.pop(0))

    async def _open_instead(self, url: str) -> None:
        if not self._is_within(url):
            self._notice(f"a new window at {url[:200]} was closed")
        elif why := await self.add_tab(url):
            self._notice(f"a new window at {url[:200]} was closed: {why}")
        else:
            await self.tab.settle()

    def _notice(self, text: str) -> None:
        if len(self.notices) < NOTICES:
            # One line each, whatever a page put into it: the lines after it are ours.
            self.notices.append(" ".join(text[:NOTICE_CHARACTERS].split()))

    def _is_within(self, url: str) -> bool:
        return self.world is not None and is_within(url, self.world.origins)

    async def _call(self, what: str, work: Awaitable[T]) -> T:
        with blame(EnvError, what):
            async with asyncio.timeout(self._settings.call_s):
                return await work


_CLEAR = """() => {
  localStorage.clear();
  sessionStorage.clear();
  history.replaceState(null, "", location.pathname + location.search);
  scrollTo({ left: 0, top: 0, behavior: "instant" });
}"""
_KEPT = """() => {
  const of = (storage) => Object.fromEntries(Object.entries(storage));
  return { [location.origin]: { local: of(localStorage), session: of(sessionStorage) } };
}"""
_KEEP = """(everywhere) => {
  const kept = everywhere[location.origin];
  if (!kept || sessionStorage.getItem("agentrl-kept")) return;
  Object.entries(kept.local).forEach(([name, value]) => localStorage.setItem(name, value));
  Object.entries(kept.session).forEach(([name, value]) => sessionStorage.setItem(name, value));
  sessionStorage.setItem("agentrl-kept", "1");
}"""
