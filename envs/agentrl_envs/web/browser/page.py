"""One page of an episode: asked in its own world and in an isolated one, with a deadline on all."""

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.errors import EnvError, blame
from agentrl_envs.web.browser.settings import BrowserSettings

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

T = TypeVar("T")


def _read_script(name: str) -> str:
    return (files("agentrl_envs.web") / name).read_text(encoding="utf-8")


_CLOCK = _read_script("browser/clock.js")
HOOK = _read_script("observation/hook.js")
"""For the page's own world, before the page's scripts: notices which elements take the mouse."""
_OBSERVERS = [_read_script(f"observation/{name}.js") for name in ("element", "observe", "markup")]
OBSERVE = "(() => {{\n{}\n}})();".format("\n".join(_OBSERVERS))
"""For an isolated world of every document: defines `observe`, `locate`, `focus`, `forget`."""
_ADVANCE = "(ms) => globalThis[Symbol.for('agentrl.clock')]?.advance(ms) ?? 0"
_MOVED_ON = re.compile(
    r"Cannot find context|context was destroyed|navigated or closed|uniqueContextId not found"
)
_WORLD = "agentrl"
"""The isolated world of our scripts: in every document, loaded before the page's own ones."""
MAX_REQUESTS = 1000
"""Of one page that wait for their answers; a page with more is lost."""
MAX_POPUPS = 50
"""Windows that a page may ask for between two actions."""
_REQUESTED_S = 0.5
"""Deadline for a requested navigation to begin; some never do."""


class MovedOn(Exception):
    """The document that was asked is gone, for another one has taken its place."""


class BrowserPage:
    """A page and its debugging session. Made by `BrowserPage.open`."""

    def __init__(self, page: "Page", cdp: "CDPSession", settings: BrowserSettings) -> None:
        self.page = page
        self.cdp = cdp
        self.popups: list[str] = []
        """Addresses the page has asked new windows for, since they were last taken."""
        self.frame = ""
        self.has_cookies: bool | None = None
        """None before the first document: then there are none in a context that is new."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception, once, when nothing can be asked any more."""
        self.on_copied: Callable[[dict[str, str]], None] = lambda texts: None
        """Gets what is copied on the page, by type."""
        self._settings = settings
        self.url = page.url
        self._world: int | None = None
        self._loading: set[str] = set()
        self._requested: dict[str, float] = {}
        self._answering = 0
        self._has_clock = False
        self._held = 0
        """Animations that stand still until time passes."""
        self._changed = asyncio.Event()
        self.broken.add_done_callback(lambda done: done.cancelled() or done.exception())

    @classmethod
    async def open(cls, page: "Page", settings: BrowserSettings) -> "BrowserPage":
        """Prepare a page that has loaded nothing yet."""
        tab = cls(page, await page.context.new_cdp_session(page), settings)
        tab._listen()
        *_, tree = await asyncio.gather(
            tab.cdp.send("Page.enable"),
            tab.cdp.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}),
            tab.cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": _BEFORE_PAGE}),
            tab.cdp.send("Page.addScriptToEvaluateOnNewDocument", _IN_ISOLATION),
            tab.cdp.send("Page.getFrameTree"),
        )
        tab.frame = tree["frameTree"]["frame"]["id"]
        return tab

    @property
    def idle(self) -> bool:
        """Return whether nothing is loading, asked for, or being answered."""
        return not (self._loading or self._requested or self._answering)

    def on_request(
        self, handle: "Callable[[BrowserPage, Mapping[str, Any]], Awaitable[None]]"
    ) -> None:
        """Have every request of the page handled; a handler that raises breaks the page."""

        async def answer_request(paused: Mapping[str, Any]) -> None:
            try:
                await handle(self, paused)
            except Exception as error:  # noqa: BLE001 - whoever waits for the page gets it
                self.fail(error if isinstance(error, EnvError) else EnvError(f"{error!r}"))
            finally:
                self._answering -= 1
                self._changed.set()

        def on_paused(params: Mapping[str, Any]) -> None:
            if self._answering >= MAX_REQUESTS:
                self.fail(EnvError(f"the page made more than {MAX_REQUESTS} requests at once"))
            if self.broken.done():
                return
            self._answering += 1
            task = asyncio.ensure_future(answer_request(params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._tasks: set[asyncio.Future[None]] = set()
        self.cdp.on("Fetch.requestPaused", on_paused)

    def fail(self, error: EnvError) -> None:
        """Let everybody who waits for this page, or will, have an error."""
        if not self.broken.done():
            self.broken.set_exception(error)

    # -- asking -----------------------------------------------------------------------------------

    async def call(self, what: str, work: Awaitable[T], within_s: float = 0.0) -> T:
        """Await something about this page, up to a deadline; a page that misses it is lost.

        Raises `EnvError`, then and whenever the page, its process or its browser is gone.
        """
        within_s = within_s or self._settings.call_s
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait(
                {task, self.broken}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done():
                if not self.broken.done():
                    self.fail(EnvError(f"the page was busy for {within_s:g} s ({what})"))
                self.broken.result()
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        with blame(EnvError, what):
            return task.result()

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the debugging protocol; raises as `call` does."""
        return await self.call(method, self.cdp.send(method, params))

    async def evaluate(self, script: str, argument: Any = None) -> Any:
        call = f"({script})({json.dumps(argument)})"
        return await self._retry(lambda: self._evaluate(call, None))

    async def run(self, function: str, argument: Any = None, *, gesture: bool = False) -> Any:
        """Call a function of the isolated world; see `observation.Eye`.

        With `gesture`, it may do what a page may only when its user does something.
        """
        return await self._retry(lambda: self._run(function, argument, gesture=gesture))

    async def screenshot(self) -> bytes:
        shot = await self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(shot["data"])

    async def _retry(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(3):
            try:
                return await ask()
            except MovedOn:
                self._world = None
                await self.wait_until_loaded()
        raise EnvError(f"the page at {self.url} changes too fast to be observed")

    async def _run(self, function: str, argument: Any, *, gesture: bool = False) -> Any:
        call = f"{function}({json.dumps(argument)})"
        return await self._evaluate(call, await self._find_isolated_world(), gesture=gesture)

    async def _find_isolated_world(self) -> int:
        if self._world is None:
            # Of this name it is there already, with our scripts; this tells its number.
            reply = await self._ask(
                "Page.createIsolatedWorld", {"frameId": self.frame, "worldName": _WORLD}
            )
            self._world = int(reply["executionContextId"])
        return self._world

    async def _evaluate(self, expression: str, world: int | None, *, gesture: bool = False) -> Any:
        params: dict[str, Any] = {
            "expression": expression,
            "returnByValue": True,
            "awaitPromise": True,
            "userGesture": gesture,
        }
        if world is not None:
            params["contextId"] = world
        reply = await self._ask("Runtime.evaluate", params)
        if (thrown := reply.get("exceptionDetails")) is not None:
            raise EnvError(f"a script in the page at {self.url} threw: {_describe(thrown)}")
        return reply["result"].get("value")

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.call(method, self.cdp.send(method, params))
        except EnvError as error:
            if _MOVED_ON.search(str(error)) and not self.broken.done():
                raise MovedOn from error
            raise

    # -- the page's time --------------------------------------------------------------------------

    async def stop_clock(self) -> None:
        """Let time stand still in every document from the next one on; see `pass_time`."""
        if not self._has_clock:
            self._has_clock = True
            await self.send("Page.addScriptToEvaluateOnNewDocument", source=_CLOCK)

    async def pass_time(self, ms: float) -> bool:
        """Let so much time pass on a page whose clock is stopped; whether anything happened in it.

        Raises as `call` does.
        """
        try:
            if animation_count := self._held:
                await self._run("glide", ms)
            return bool(await self._evaluate(f"({_ADVANCE})({ms})", None)) or animation_count > 0
        except MovedOn:
            # Time has taken the page to another one, and begins anew there.
            self._world = None
            return True

    # -- coming to rest ---------------------------------------------------------------------------

    async def wait_until_loaded(self) -> None:
        """Wait until nothing is loading or being answered, up to `settle_s`."""
        await self._wait_until_idle(asyncio.get_running_loop().time() + self._settings.settle_s)

    async def settle(self, *, calm_frames: int = 2) -> None:
        """Wait until what an action set off has loaded and been drawn, up to `settle_s`.

        Drawn is what has not changed for so many frames.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.settle_s
        while True:
            await self._wait_until_idle(deadline)
            most_s = min(self._settings.still_s, max(0.0, deadline - loop.time()))
            try:
                calm = {"mostMs": most_s * 1000, "calmFrames": calm_frames}
                reply = await self._run("still", {**calm, "holds": self._has_clock})
                self._held = reply["held"]
                if reply["copied"] is not None:
                    self.on_copied(reply["copied"])
            except MovedOn:
                self._world = None
                if loop.time() < deadline:
                    continue
            if self.idle or loop.time() >= deadline:
                return

    async def _wait_until_idle(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while not self.idle and (remaining_s := deadline - loop.time()) > 0:
            if self.broken.done():
                self.broken.result()
            oldest = min(self._requested.values(), default=loop.time())
            if self._requested:
                remaining_s = min(remaining_s, max(0.0, oldest + _REQUESTED_S - loop.time()))
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait(
                    {waiting, self.broken}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                waiting.cancel()
            now = loop.time()
            for frame in [f for f, at in self._requested.items() if now - at >= _REQUESTED_S]:
                del self._requested[frame]

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()

        def on_started(params: Mapping[str, Any]) -> None:
            self._loading.add(params["frameId"])
            self._requested.pop(params["frameId"], None)
            self._changed.set()

        def on_stopped(params: Mapping[str, Any]) -> None:
            self._loading.discard(params["frameId"])
            self._requested.pop(params["frameId"], None)
            self._changed.set()

        def on_requested(params: Mapping[str, Any]) -> None:
            if params.get("disposition") == "currentTab":
                self._requested[params["frameId"]] = loop.time()

        def on_window(params: Mapping[str, Any]) -> None:
            if len(self.popups) < MAX_POPUPS:
                self.popups.append(params["url"])

        def on_navigated(params: Mapping[str, Any]) -> None:
            frame = params["frame"]
            if frame["id"] == self.frame:
                self.url = frame["url"] + frame.get("urlFragment", "")
                self._world = None

        def on_crashed(_: object) -> None:
            self.fail(EnvError(_CRASHED))

        def on_moved(params: Mapping[str, Any]) -> None:
            if params["frameId"] == self.frame:
                self.url = params["url"]

        self.cdp.on("Page.frameNavigated", on_navigated)
        self.cdp.on("Page.navigatedWithinDocument", on_moved)
        self.cdp.on("Page.frameStartedLoading", on_started)
        self.cdp.on("Page.frameStoppedLoading", on_stopped)
        self.cdp.on("Page.frameDetached", on_stopped)
        self.cdp.on("Page.frameRequestedNavigation", on_requested)
        self.cdp.on("Page.windowOpen", on_window)
        # Of the relay too, where a page makes the browser say more than may be said.
        self.cdp.on("Inspector.targetCrashed", on_crashed)
        self.page.on("crash", on_crashed)
        self.page.on("close", lambda _: self.fail(EnvError("the page was closed")))


_CRASHED = "the page's process died, or its messages were over the limits of browser/relay.py"
_BEFORE_PAGE = "\n".join((_read_script("browser/limits.js"), HOOK))
_IN_ISOLATION = {
    "source": "\n".join((OBSERVE, _read_script("browser/hands.js"))),
    "worldName": _WORLD,
    "runImmediately": True,
}


def _describe(thrown: Mapping[str, Any]) -> str:
    exception = thrown.get("exception", {})
    return str(exception.get("description") or exception.get("value") or thrown.get("text"))[:500]
