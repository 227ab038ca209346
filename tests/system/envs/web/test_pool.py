"""Pages made ahead and kept, and browsers that hold too much.

Mutants seen caught: a used page for an episode that may not have one; a broken page handed out; the
latest page making room and not the oldest; a world for loading that stays open; browsers that have
grown go on; only the outermost process is counted; several pages wait where one does; a kept page
that stays scrolled, or keeps the end of its address; a fork's page that counts as unused, or whose
storage is put there again.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import call
from agentrl.errors import ConfigError, EnvError
from agentrl.runtime.closing import AsyncClosable
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings, PageScreen
from agentrl_envs.web.browser.browser import BrowserProcess
from agentrl_envs.web.browser.context import EpisodeContext
from agentrl_envs.web.browser.processes import list_descendants, measure_private_bytes
from agentrl_envs.web.browser.warm_pages import PageOptions, WarmPages
from agentrl_envs.web.episode_site import WebRequest, WebResponse
from tests.support.processes import children
from tests.support.web_pages import ORIGIN, PagesPack

SCREEN = PageScreen(400, 300)


# -- starts ----------------------------------------------------------------------------------------


@pytest.mark.chromium
async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    """Of Playwright's driver, and of a browser, wherever the start has come to."""
    before = {*children(os.getpid())}
    for after_s in (0.0, 0.1, 0.3, 0.6, 1.2):
        await cut_short(BrowserProcess.start(BrowserSettings(call_s=60)), after_s)
        assert await are_gone(lambda: {*children(os.getpid())} - before)


async def cut_short(starting: Coroutine[Any, Any, AsyncClosable], after_s: float) -> None:
    """Cancel a start after a while; what was quicker is closed."""
    task = asyncio.create_task(starting)
    await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()


async def are_gone(left: Callable[[], Collection[int]]) -> bool:
    """Wait until no process is left; whether that came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while left():  # noqa: ASYNC110 - other processes end
                await asyncio.sleep(0.05)
    return not left()


# -- pages that wait -------------------------------------------------------------------------------


def waiting(*, used: bool = False, screen: PageScreen = SCREEN) -> EpisodeContext:
    visit = EpisodeContext(None, screen, BrowserSettings(), None)  # pyright: ignore[reportArgumentType]
    visit.used = used
    return visit


def test_a_page_fits_by_address_screen_and_past() -> None:
    shelf = WarmPages()
    fresh, used, wide = waiting(), waiting(used=True), waiting(screen=PageScreen(800, 600))
    for visit in (fresh, used, wide):
        shelf.put("http://a.test/", visit)
    assert shelf.take(PageOptions("http://b.test/", SCREEN, used_too=True)) is None
    assert shelf.take(PageOptions("", SCREEN)) is None
    assert shelf.count(PageOptions("http://a.test/", SCREEN)) == 1
    assert shelf.take(PageOptions("http://a.test/", SCREEN, used_too=True)) is used
    assert shelf.take(PageOptions("http://a.test/", SCREEN)) is fresh
    assert shelf.take(PageOptions("http://a.test/", SCREEN)) is None
    assert shelf.take(PageOptions("http://a.test/", PageScreen(800, 600))) is wide
    assert len(shelf) == 0


def test_a_page_that_broke_while_it_waited_is_passed_over() -> None:
    shelf = WarmPages()
    sound, broken = waiting(), waiting()
    shelf.put("", sound)
    shelf.put("", broken)
    broken.fail(EnvError("it died"))
    assert shelf.take(PageOptions("", SCREEN)) is sound
    assert len(shelf) == 0


def test_the_page_that_has_waited_longest_goes_and_empty_ones_stay() -> None:
    shelf = WarmPages()
    empty, first, second = waiting(), waiting(), waiting()
    shelf.put("", empty)
    shelf.put("http://a.test/", first)
    shelf.put("http://b.test/", second)
    assert shelf.surplus(2) is None
    assert shelf.surplus(1) is first
    assert shelf.surplus(1) is None
    assert shelf.take(PageOptions("", SCREEN)) is empty


class Halting:
    """A browser, and its only context, in which no page opens."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.opening = asyncio.Event()
        self.is_closed = False

    async def new_context(self, **_: Any) -> "Halting":
        return self

    def on(self, event: str, handler: Any) -> None: ...

    async def new_page(self) -> Any:
        self.opening.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


async def test_a_context_whose_page_does_not_open_is_not_left_behind() -> None:
    broken = Halting(RuntimeError("out of memory"))
    with pytest.raises(EnvError, match="out of memory"):
        await EpisodeContext.open(broken, SCREEN, BrowserSettings(), asyncio.Lock())
    slow = Halting(None)
    opening = asyncio.create_task(
        EpisodeContext.open(slow, SCREEN, BrowserSettings(), asyncio.Lock())
    )
    await slow.opening.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (broken.is_closed, slow.is_closed) == (True, True)


# -- in a browser ----------------------------------------------------------------------------------


def in_one_browser(test: Any) -> Any:
    return pytest.mark.chromium(pytest.mark.asyncio(loop_scope="module")(test))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, warm=1, episodes=2))
    yield made
    await made.close()


@in_one_browser
async def test_a_page_is_loaded_while_nobody_waits(pool: BrowserPool) -> None:
    """An episode that may not begin on a used page begins on one that was loaded before it."""
    loads: list[str] = []

    def counted(request: WebRequest) -> WebResponse | None:
        loads.append(request.url)
        return None

    pack = PagesPack(options={"early": True, "on_answer": counted})
    env = WebEnv(pack=pack, browser=pool)
    texts: list[str] = []
    origins: list[str] = []
    for _ in range(3):
        opening, info = await env.reset(seed=0)
        texts.append(opening.messages[-1].text)
        origins.append(info["page"])
        await pool.rest()
        worlds = pack.made
        step = await env.step(call("fill", id=1, text="apple"))
        assert "value=apple" in step[0].messages[-1].text
        assert loads.count(f"{ORIGIN}/") == len(worlds) + 1, "one page waits, and no more"
    await env.close()
    assert origins == ["new", "ahead", "ahead"]
    assert len(set(texts)) == 1


@in_one_browser
async def test_the_world_it_was_loaded_with_is_closed(pool: BrowserPool) -> None:
    pack = PagesPack(options={"early": True})
    env = WebEnv(pack=pack, browser=pool, screen=(300, 300))
    loaders: list[Any] = []
    make = pack.world

    def kept(task: Any) -> Any:
        world = make(task)
        ahead = world.ahead

        def remembered() -> Any:
            loaders.append(ahead())
            return loaders[-1]

        world.ahead = remembered  # pyright: ignore[reportAttributeAccessIssue]
        return world

    pack.world = kept  # pyright: ignore[reportAttributeAccessIssue]
    await env.reset(seed=0)
    await pool.rest()
    assert [loader.closed for loader in loaders] == [True]
    assert not pack.made[-1].closed
    await env.close()


@in_one_browser
async def test_nothing_is_loaded_ahead_of_a_world_that_does_not_say_so(pool: BrowserPool) -> None:
    pack = PagesPack()
    env = WebEnv(pack=pack, browser=pool, screen=(310, 310))
    for _ in range(2):
        _, info = await env.reset(seed=0)
        await pool.rest()
        assert info["page"] == "new"
    assert [len(world.asked) for world in pack.made] == [1, 1]
    await env.close()


@in_one_browser
async def test_a_page_that_cannot_be_loaded_ahead_is_nobodys_failure(pool: BrowserPool) -> None:
    """It is loaded by the episode that needs it, which hears what is wrong, if it still is."""
    broken = False

    def down(request: WebRequest) -> WebResponse | None:
        return WebResponse(status=204) if broken else None

    pack = PagesPack(options={"early": True, "on_answer": down})
    env = WebEnv(pack=pack, browser=pool, screen=(320, 320))
    await env.reset(seed=0)
    broken = True
    await pool.rest()
    await env.close()
    with suppress(EnvError):
        await env.reset(seed=0)
    broken = False
    await env.reset(seed=0)
    await env.close()
    assert pool.figures()["visits"] == 0


@pytest.mark.chromium
async def test_pages_of_the_past_make_room() -> None:
    """Kept pages are as many as there are episodes at once; the latest stay."""
    pool = await BrowserPool.open(BrowserSettings(call_s=60, warm=0, episodes=2))
    began: list[str] = []
    waiting: list[float] = []
    try:
        for path in ("a", "b", "c", "b", "a"):
            pages = {f"/{path}": f"<title>{path}</title><p>{path}"}
            options = {"reusable": True, "start_url": f"{ORIGIN}/{path}"}
            env = WebEnv(pack=PagesPack(pages=pages, options=options), browser=pool)
            _, info = await env.reset(seed=0)
            began.append(info["page"])
            await env.close()
            await pool.rest()
            waiting.append(pool.figures()["waiting"])
    finally:
        await pool.close()
    assert began == ["new", "new", "new", "kept", "new"]
    assert waiting == [1, 2, 2, 2, 2]


@in_one_browser
async def test_a_kept_page_is_at_its_address_and_at_its_top(pool: BrowserPool) -> None:
    tall = {"/": "<style>html { scroll-behavior: smooth }</style><p style=height:4000px>tall"}
    env = WebEnv(pack=PagesPack(tall, {"reusable": True}), browser=pool, screen=(330, 330))
    seen: list[tuple[str, str, int]] = []
    for _ in range(2):
        opening, info = await env.reset(seed=0)
        tab = env._running().visit.tab  # pyright: ignore[reportPrivateUsage]
        at = await tab.evaluate("() => scrollY")
        seen.append((info["page"], opening.messages[-1].text, at))
        step = await env.step(call("goto", url="#below"))
        assert f"url: {ORIGIN}/#below" in step[0].messages[-1].text
        await env.step(call("scroll", direction="down"))
        assert await tab.evaluate("() => scrollY") > 0
        await env.close()
        await pool.rest()
    assert seen == [("new", seen[0][1], 0), ("kept", seen[0][1], 0)]


@in_one_browser
async def test_the_page_of_a_fork_has_nothing_of_it_afterwards(pool: BrowserPool) -> None:
    """Not after the next navigation either, before which a copy puts its storage there."""
    pack = PagesPack(options={"reusable": True})
    env = WebEnv(pack=pack, browser=pool, screen=(340, 340), fork="copy")
    await env.reset(seed=0)
    tab = env._running().visit.tab  # pyright: ignore[reportPrivateUsage]
    await tab.evaluate("() => localStorage.setItem('mine', '1')")
    fork = await env.fork()
    tab = fork._running().visit.tab  # pyright: ignore[reportPrivateUsage]
    assert await tab.evaluate(_MINE) == "1"
    await env.close()
    await pool.rest()
    await fork.close()
    await pool.rest()
    _, info = await env.reset(seed=0)
    visit = env._running().visit  # pyright: ignore[reportPrivateUsage]
    assert (info["page"], visit.tab) == ("kept", tab)
    await env.step(call("goto", url="/done"))
    assert await tab.evaluate(_MINE) is None
    await env.close()


_MINE = "() => localStorage.getItem('mine')"


# -- browsers that hold too much -------------------------------------------------------------------


@pytest.mark.chromium
@pytest.mark.parametrize("cgroup", [True, False])
async def test_a_browser_that_has_grown_is_replaced_between_episodes(
    cgroup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that are on it go on to their end; with a cgroup, and where there is none."""
    if not cgroup:
        monkeypatch.setattr("agentrl_sandbox.program.CgroupRoot.find", lambda: None)
    pool = await BrowserPool.open(BrowserSettings(warm=0, call_s=60))
    try:
        one, two, three = (WebEnv(pack=PagesPack(), browser=pool) for _ in range(3))
        await one.reset(seed=0)
        await two.reset(seed=0)
        await one.close()
        await pool.rest()
        assert pool.figures()["browsers"] == 1
        await one.reset(seed=0)
        first = browser_of(pool)
        held = await asyncio.to_thread(first._measure_private_bytes)  # pyright: ignore[reportPrivateUsage]
        assert 20e6 < held < 4e9
        hold = "() => { window.held = new Uint8Array(2 ** 28).fill(1); return held.length; }"
        tab = one._running().visit.tab  # pyright: ignore[reportPrivateUsage]
        assert await tab.evaluate(hold) == 2**28
        grown = await asyncio.to_thread(first._measure_private_bytes)  # pyright: ignore[reportPrivateUsage]
        assert grown - held > 2**27
        first._settings = BrowserSettings(recycle_bytes=(held + grown) // 2)  # pyright: ignore[reportPrivateUsage]
        await three.reset(seed=0)
        assert browser_of(pool) is first, "nobody looks during an episode"
        await three.close()
        await pool.rest()
        await three.reset(seed=0)
        assert browser_of(pool) is not first
        assert pool.figures()["browsers"] == 2
        step = await two.step(call("goto", url="/other"))
        assert "title: Other" in step[0].messages[-1].text
        for env in (one, two):
            await env.close()
        await pool.rest()
        assert pool.figures()["browsers"] == 1
        await three.close()
    finally:
        await pool.close()


def browser_of(pool: BrowserPool) -> Any:
    (browser,) = pool._browsers  # pyright: ignore[reportPrivateUsage]
    return browser


def test_recycling_needs_a_bound() -> None:
    with pytest.raises(ConfigError, match="recycle_bytes must be above 0, got 0"):
        BrowserSettings(recycle_bytes=0)


HOLDER = """
import subprocess, sys
if len(sys.argv) == 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "x", "y"], stdout=-1)
    child.stdout.readline()
held = bytearray(64 * 2**20)
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_is_counted_over_a_whole_family_of_processes() -> None:
    mark = f"mark-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, HOLDER],
        env={**os.environ, "AGENTRL_LEASE": mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        assert len([*list_descendants(process.pid)]) == 1
        assert 128 * 2**20 < measure_private_bytes(mark) < 256 * 2**20
        assert measure_private_bytes("mark-of-nobody") == 0
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
    assert measure_private_bytes(mark) == 0
    assert [*list_descendants(process.pid)] == []
