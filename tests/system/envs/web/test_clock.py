"""The page's time: under `clock="steps"` it goes on with the actions, and with nothing else.

Pages here write what they have seen of the time into their title; every test waits for real in
between, which must change nothing.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import call
from agentrl.errors import ConfigError, EnvError
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.miniwob import MiniWobPack
from agentrl_envs.web.observation import read
from tests.support.web_pages import ORIGIN, PagesPack

BROWSER = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]
ACTION_MS = 200
REAL_S = 0.3
"""Longer than an action takes of the page's time."""


@pytest.mark.parametrize(
    "wrong", [{"clock": "fast"}, {"action_ms": 0}, {"action_ms": -1}, {"action_ms": 60_001}]
)
def test_a_clock_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"clock must be one of|action_ms must be"):
        WebEnv(pack=PagesPack(), **wrong)


@pytest.mark.parametrize(
    ("pack", "clock", "kept"),
    [
        (PagesPack(), None, None),
        (PagesPack(), "steps", 50.0),
        (MiniWobPack(families="click-test"), None, 50.0),
        (MiniWobPack(families="click-test"), "real", None),
    ],
)
def test_the_pack_says_which_clock_unless_the_environment_does(
    pack: Any, clock: Any, kept: float | None
) -> None:
    env = WebEnv(pack=pack, clock=clock, action_ms=50)
    assert env._action_ms == kept  # pyright: ignore[reportPrivateUsage]


class Told:
    """An episode on one page, under either clock."""

    def __init__(self, env: WebEnv, opening: str) -> None:
        self.env = env
        self.text = opening

    @property
    def title(self) -> str:
        return read(self.text).title

    async def does(self, name: str, **arguments: Any) -> str:
        """Act after a while; return the title then."""
        await asyncio.sleep(REAL_S)
        step = await self.env.step(call(name, **arguments))
        self.text = step[0].messages[-1].text
        return self.title

    async def waits(self, ms: int = 0) -> str:
        return await self.does("wait", milliseconds=ms)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, warm=0))
    yield made
    await made.close()


class TestSteps:
    """In a real browser."""

    pytestmark = BROWSER

    @pytest_asyncio.fixture(loop_scope="module")
    async def began(self, pool: BrowserPool) -> AsyncGenerator[Any]:
        envs = list[WebEnv]()

        async def begin(body: str, pages: dict[str, str] | None = None, **options: Any) -> Told:
            pack = PagesPack(pages={"/": f"<!doctype html>{body}", **(pages or {})})
            settings: dict[str, Any] = {"clock": "steps", "action_ms": ACTION_MS, **options}
            envs.append(WebEnv(pack=pack, browser=pool, **settings))
            opening, _ = await envs[-1].reset(seed=0)
            return Told(envs[-1], opening.messages[-1].text)

        yield begin
        for env in envs:
            await env.close()

    async def test_timers_fire_when_their_time_has_come(self, began: Any) -> None:
        """The opening takes as long as an action; `wait` what it says, and an action on top."""
        told = await began(
            "<title>0</title><script>"
            "setTimeout((word) => { document.title += ' ' + word; }, 500, 'once');"
            "setInterval('document.title = 1 + parseInt(document.title) + document.title"
            ".replace(/^[0-9]+/, String())', 100);"
            "clearTimeout(setTimeout(() => { document.title = 'never'; }, 10));"
            "const ended = setInterval(() => { document.title = 'never'; }, 10);"
            "clearInterval(ended);</script>"
        )
        assert told.title == "2"
        assert await told.waits() == "4"
        assert await told.waits() == "6 once"
        assert await told.waits(1000) == "18 once"

    async def test_what_cannot_be_done_takes_no_time(self, began: Any) -> None:
        told = await began(
            "<title>0</title><script>setInterval(() => document.title++, 100);</script>"
        )
        before = told.title
        await told.does("click", id=99)
        assert "there is no element [99]" in told.text
        assert await told.waits() == str(int(before) + 2)

    async def test_dates_frames_and_the_stopwatch_agree(self, began: Any) -> None:
        told = await began(
            "<title>-</title><script>const from = [Date.now(), performance.now()]; let frames = 0;"
            "requestAnimationFrame(function next(now) {"
            "  frames += 1; requestAnimationFrame(next);"
            "  document.title = JSON.stringify([frames, Date.now() - from[0], now - from[1],"
            "    new Date() - from[0], typeof Date(), new Date(5).getTime(), now]); });"
            "cancelAnimationFrame(requestAnimationFrame(() => { frames = 1e6; }));</script>"
        )
        for turn in (1, 2, 3):
            passed = turn * ACTION_MS // 16 * 16
            seen = json.loads(told.title)
            assert seen == [passed // 16, passed, passed, passed, "string", 5, passed]
            await told.waits()

    async def test_an_idle_moment_comes_with_time(self, began: Any) -> None:
        told = await began(
            '<title>0</title><button onclick="requestIdleCallback((left) => {'
            "document.title += ' ' + (left.timeRemaining() > 0) + left.didTimeout; });"
            "cancelIdleCallback(requestIdleCallback(() => { document.title = 'never'; }))\">Go"
            "</button>"
        )
        assert await told.does("click", id=1) == "0 truefalse"

    async def test_things_happen_in_order_and_promises_between_them(self, began: Any) -> None:
        told = await began(
            "<title>-</title><script>const say = (x) => { document.title += x; };"
            "setTimeout(() => say('c'), 30); setTimeout(() => say('b'), 20);"
            "setTimeout(() => { say('a'); Promise.resolve().then(() => say('p'));"
            "  setTimeout(() => say('q'), 0); }, 10);"
            "setTimeout(() => say('B'), 20);</script>"
        )
        assert told.title == "-apqbBc"

    async def test_a_script_that_throws_stops_nothing(self, began: Any) -> None:
        told = await began(
            "<title>-</title><script>onerror = (why) => { document.title += ' ' + why; };"
            "setTimeout(() => { throw Error('one'); }, 10);"
            "setTimeout(() => { document.title += ' two'; }, 20);</script>"
        )
        assert told.title == "- Uncaught Error: one two"

    async def test_a_page_that_sets_one_timer_after_another_comes_to_an_end(
        self, began: Any
    ) -> None:
        told = await began(
            "<title>0</title><script>(function again() {"
            "document.title++; setTimeout(again, 0); })();</script>"
        )
        assert told.title == str(ACTION_MS + 1)

    async def test_time_that_takes_the_page_elsewhere_begins_anew_there(self, began: Any) -> None:
        told = await began(
            "<script>setTimeout(() => { location.href = '/next'; }, 300);</script>",
            {"/next": "<title>0</title><script>setInterval(() => document.title++, 100);</script>"},
        )
        await told.waits()
        assert read(told.text).url == f"{ORIGIN}/next"
        assert told.title == "0"
        assert await told.waits() == "2"

    async def test_tabs_have_a_clock_of_their_own(self, began: Any) -> None:
        ticking = "<title>0</title><script>setInterval(() => document.title++, 100);</script>"
        told = await began(ticking, {"/second": ticking})
        assert await told.does("new_tab", url="/second") == "2"
        assert await told.does("switch_tab", index=0) == "4", "it stood still behind the other one"

    async def test_frames_of_the_site_go_by_the_same_clock(self, began: Any) -> None:
        told = await began(
            "<title>-</title><iframe src=/inner></iframe>",
            {
                "/inner": "<script>let n = 0; setInterval(() => {"
                "parent.document.title = `${(n += 1)} ${Date.now() === parent.Date.now()}`; },"
                "100);</script>"
            },
        )
        assert told.title == "2 true"
        assert await told.waits() == "4 true"

    async def test_animations_go_on_with_the_actions(self, began: Any) -> None:
        """A second of gliding takes five actions, and its end is told to the page."""
        told = await began(
            "<title>-</title><style>@keyframes far { to { left: 1000px } }"
            "#it { position: absolute; left: 0; width: 9px; height: 9px;"
            " animation: far 1s linear forwards }</style>"
            "<div id=it role=button aria-label=It onanimationend=\"document.title = 'end'\"></div>",
            observation_kwargs={"boxes": True},
        )
        for turn in (1, 2, 3, 4):
            x, _ = read(told.text).find("button", "It").at
            assert (x, told.title) == (pytest.approx(turn * 200 + 5, abs=2), "-")
            await told.waits()
        await told.waits()
        x, _ = read(told.text).find("button", "It").at
        assert (x, told.title) == (pytest.approx(1005, abs=2), "end")

    async def test_under_the_real_clock_a_page_goes_on_by_itself(self, began: Any) -> None:
        told = await began(
            "<title>0</title><script>setInterval(() => document.title++, 20);</script>",
            clock="real",
        )
        before, deadline_s = int(told.title), time.monotonic() + 60
        while int(told.title) - before < REAL_S * 1000 / 20 / 2:
            assert time.monotonic() < deadline_s
            await told.waits()
        assert "agentrl" not in await _clocked(told)

    async def test_pages_of_either_clock_are_kept_apart(self, pool: BrowserPool) -> None:
        """One that was left by an episode of the other clock is no page for this one."""
        pack = PagesPack(options={"reusable": True})
        stepped, real = (
            WebEnv(pack=pack, browser=pool, clock=clock) for clock in ("steps", "real")
        )
        pages = list[str]()
        for _ in range(2):
            for env, has in ((stepped, True), (real, False)):
                opening, info = await env.reset(seed=0)
                pages.append(info["page"])
                assert ("agentrl" in await _clocked(Told(env, opening.messages[-1].text))) == has
                await env.close()
            await pool.rest()
        assert pages == ["new", "new", "kept", "kept"]

    async def test_a_page_that_does_not_let_time_pass_fails_its_episode(self, began: Any) -> None:
        told = await began(
            "<title>-</title><button onclick='setTimeout(() => { for (;;); }, 10)'>Go</button>"
        )
        visit = told.env._running().visit
        visit.tab._settings = BrowserSettings(call_s=2)
        with pytest.raises(EnvError, match="busy for 2 s"):
            await told.does("click", id=1)


async def _clocked(told: Told) -> str:
    visit = told.env._running().visit  # pyright: ignore[reportPrivateUsage]
    return str(
        await visit.tab.evaluate("() => Object.getOwnPropertySymbols(window).map(String).join()")
    )
