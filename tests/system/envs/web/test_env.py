"""The browser environment: promises, actions, forks, and browsers that die under it.

Mutants seen caught: the address of a frame taken for the page's; worn browsers go on.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

import agentrl
from agentrl.env import Action, Step, call, say
from agentrl.errors import ConfigError, EnvError
from agentrl.message import ToolCall
from agentrl.testing import check_env
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings, EpisodeContext
from agentrl_envs.web.episode_site import WebRequest, WebResponse
from agentrl_envs.web.observation import read
from tests.support.examples import spread_cases
from tests.support.processes import children, command_line
from tests.support.web_pages import FORM, ORIGIN, PAGES, Pages, PagesPack

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.asyncio(loop_scope="module"),
]

WHOLE_BROWSER = "/usr/lib/chromium/chromium"
CONTROLS = """<!doctype html><title>Controls</title><body style="margin:0">
<input id=t aria-label=Text onkeyup="log('key')" onchange="log('change')">
<input type=date aria-label=Date><input type=range min=0 max=10 aria-label=Range>
<select aria-label=Size><option value=s>Small</option><option value=l>Large</option></select>
<input type=checkbox aria-label=Box><button disabled>Off</button>
<button ondblclick="log('double')">Twice</button>
<div id=h onmouseover="log('over')" onclick="log('at ' + event.clientX + ' ' + event.clientY)"
 style="width:200px;height:40px;background:#ccc">hover</div>
<div id=a style="width:60px;height:30px" onmousedown="window.down=1">drag me</div>
<div id=b style="width:60px;height:30px" onmouseup="window.down && log('dropped')">here</div>
<div style="height:3000px"></div><button onclick="log('bottom')">Bottom</button>
<p id=log></p><script>const log = (x) => { document.title += ' ' + x; }</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, warm=0, tabs=2))
    yield made
    await made.close()


@asynccontextmanager
async def on(
    pool: BrowserPool, pages: dict[str, str] | None = None, **options: Any
) -> AsyncGenerator[tuple[WebEnv, str, PagesPack]]:
    """Begin an episode."""
    pack = PagesPack(pages=pages, options=options.pop("options", {}))
    env = WebEnv(pack=pack, browser=pool, **options)
    try:
        opening, _ = await env.reset(seed=0)
        yield env, opening.messages[-1].text, pack
    finally:
        await env.close()


async def does(env: WebEnv, name: str, **arguments: Any) -> str:
    return shown(await env.step(call(name, **arguments)))


def shown(step: Step) -> str:
    return step[0].messages[-1].text


def visit_of(env: WebEnv) -> EpisodeContext:
    episode: Any = env._episode  # pyright: ignore[reportPrivateUsage]
    return episode.visit


# -- promises --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", spread_cases(["copy", "replay"], 1))
async def test_the_environment_keeps_its_promises(pool: BrowserPool, fork: str) -> None:
    pack = PagesPack(options={"reusable": True})
    env = WebEnv(pack=pack, browser=pool, fork=fork)  # pyright: ignore[reportArgumentType]
    promises = await check_env(env, episodes=1, tasks=3, timeout_s=120, grace_s=20)
    assert {"gold scores", "forks do not interfere", "reset is deterministic"} <= {*promises}


@pytest.mark.skipif(not os.path.exists(WHOLE_BROWSER), reason=f"there is no {WHOLE_BROWSER}")
async def test_a_whole_browser_serves_as_well_as_a_headless_shell() -> None:
    browser = {"executable": WHOLE_BROWSER, "warm": 0}
    env = WebEnv(pack=PagesPack(options={"reusable": True}), browser=browser)
    promises = await check_env(env, episodes=1, tasks=2, timeout_s=120, grace_s=20)
    assert {"gold scores", "reset is deterministic"} <= {*promises}


async def test_a_scope_owns_the_browsers() -> None:
    """Two environments share them, and their end is the scope's."""
    from agentrl.runtime.scope import run_scope

    first, second = (WebEnv(pack=PagesPack(), browser={"warm": 0}) for _ in range(2))
    async with run_scope():
        await first.reset(seed=0)
        await second.reset(seed=0)
        assert visit_of(first)._context.browser is visit_of(second)._context.browser  # pyright: ignore[reportPrivateUsage]
        browser = visit_of(first)._context.browser  # pyright: ignore[reportPrivateUsage]
        await first.close()
        await second.close()
        assert browser is not None
        assert browser.is_connected()
    assert not browser.is_connected()


async def test_settings_are_checked() -> None:
    for wrong in (
        {"browser": {"isolation": "hope"}},
        {"browser": {"colour": 1}},
        {"browser": {"call_s": 0}},
        {"actions": ["fly"]},
        {"observation": "smell"},
        {"max_turns": 0},
        {"fork": "native"},
    ):
        with pytest.raises(ConfigError):
            WebEnv(pack=PagesPack(), **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="families"):
        agentrl.make("miniwob/Mix-v0")
    env = WebEnv(pack=PagesPack(), browser={"executable": "/nowhere"})
    with pytest.raises(ConfigError, match="no program"):
        await env.reset(seed=0)
    await env.close()


# -- actions ---------------------------------------------------------------------------------------


async def test_every_control_can_be_used(pool: BrowserPool) -> None:
    async with on(pool, {"/": CONTROLS}) as (env, text, _):
        page = read(text)
        field = page.id("textbox", "Text")
        after = await does(env, "fill", id=field, text="one two")
        assert f'textbox "Text" [{field}] value="one two"' in after
        assert "key key" in after, "typed, not only put in"
        assert f"[{field}] value=new" in await does(env, "fill", id=field, text="new" + "x" * 100)
        assert "value" not in (await does(env, "fill", id=field, text="")).split("\n")[2]
        assert "2024-02-29" in await does(env, "fill", id=page.id(name="Date"), text="2024-02-29")
        assert "not a field" in await does(env, "fill", id=page.id("checkbox"), text="x")
        assert "does not accept" in await does(env, "fill", id=page.id(name="Date"), text="soon")
        assert 'value="7"' in (await does(env, "fill", id=page.id("slider"), text="7")).replace(
            "value=7", 'value="7"'
        )
        box = page.id("combobox", "Size")
        assert "value=Large" in await does(env, "select", id=box, option="Large")
        assert "the options are Small, Large" in await does(env, "select", id=box, option="Huge")
        assert "checked" in await does(env, "click", id=page.id("checkbox"))
        assert "disabled" in await does(env, "click", id=page.id("button", "Off"))
        twice = await does(env, "double_click", id=page.id("button", "Twice"))
        assert "double" in twice
        assert "there is no element [999]" in await does(env, "click", id=999)


async def test_the_mouse_goes_where_it_is_told(pool: BrowserPool) -> None:
    async with on(pool, {"/": CONTROLS}) as (env, text, _):
        page = read(text)
        hovered = page.find(contains="hover").id
        assert "over" in await does(env, "hover", id=hovered)
        x, y = (await visit_of(env).tab.evaluate(MIDDLE, "h")).values()
        assert f"at {x} {y}" in await does(env, "click_at", x=x, y=y)
        assert "not on the page" in await does(env, "click_at", x=5000, y=5)
        start = (await visit_of(env).tab.evaluate(MIDDLE, "a")).values()
        end = (await visit_of(env).tab.evaluate(MIDDLE, "b")).values()
        x1, y1, x2, y2 = *start, *end
        assert "dropped" in await does(env, "drag_at", x1=x1, y1=y1, x2=x2, y2=y2)
        assert "bottom" in await does(env, "click", id=page.id("button", "Bottom"))
        assert "url: " in await does(env, "scroll", direction="up")
        tops = [await does(env, "scroll", direction="up") for _ in range(6)]
        assert "any further up" in tops[-1]


MIDDLE = """(id) => {
  const box = document.getElementById(id).getBoundingClientRect();
  return { x: Math.round(box.x + box.width / 2), y: Math.round(box.y + box.height / 2) };
}"""


async def test_navigation_and_tabs(pool: BrowserPool) -> None:
    async with on(pool) as (env, text, _):
        link = read(text).id("link", "Other")
        assert "title: Other" in await does(env, "click", id=link)
        assert "title: Form" in await does(env, "go_back")
        assert "no page to go back to" in await does(env, "go_back")
        tabs = await does(env, "new_tab", url="/other")
        assert f"tabs: 0 {ORIGIN}/, 1* {ORIGIN}/other" in tabs
        assert "title: Form" in await does(env, "switch_tab", index=0)
        assert "there is no tab 7" in await does(env, "switch_tab", index=7)
        await does(env, "new_tab", url="/other")
        assert "close one first" in await does(env, "new_tab", url="/")
        await does(env, "close_tab")
        assert "tabs: " not in await does(env, "close_tab")
        assert "only tab" in await does(env, "close_tab")
        assert "Not found" in await does(env, "goto", url="/nowhere")


async def test_a_form_is_posted_and_its_redirect_followed(pool: BrowserPool) -> None:
    """By the browser: the address is that of the page it was led to."""
    async with on(pool) as (env, text, pack):
        page = read(text)
        await does(env, "fill", id=page.id("textbox", "Word"), text="apple")
        after = await does(env, "press", key="Enter")
        assert f"url: {ORIGIN}/done" in after
        assert "1 saved" in after
        methods = [(r.method, r.url.removeprefix(ORIGIN)) for r in pack.made[-1].asked]
        assert ("POST", "/save") in methods
        assert ("GET", "/done") in methods
        assert "there is no key" in await does(env, "press", key="Hyper")
        step = await env.step(call("answer", text="done"))
        assert step[1:4] == (1.0, True, False)


async def test_cookies_are_sent_back(pool: BrowserPool) -> None:
    def cookies(request: WebRequest) -> WebResponse | None:
        if request.url == f"{ORIGIN}/in":
            headers = {"location": "/", "set-cookie": "a=1; HttpOnly\nb=2"}
            return WebResponse(status=302, headers=headers)
        return None

    async with on(pool, dict(PAGES), options={"on_answer": cookies}) as (env, _, pack):
        await does(env, "goto", url="/in")
        sent = [r for r in pack.made[-1].asked if r.url == f"{ORIGIN}/"][-1].headers["cookie"]
        assert sorted(sent.split("; ")) == ["a=1", "b=2"]


async def test_a_new_tab_and_a_copy_have_the_cookies(pool: BrowserPool) -> None:
    """From their first request on, although a context that is new is not asked for any."""

    def cookies(request: WebRequest) -> WebResponse | None:
        if request.url == f"{ORIGIN}/in":
            return WebResponse(status=302, headers={"location": "/", "set-cookie": "a=1"})
        return None

    options = {"on_answer": cookies}
    async with on(pool, dict(PAGES), options=options, fork="copy") as (env, _, pack):
        asked = pack.made[-1].asked
        assert "cookie" not in asked[0].headers
        await does(env, "goto", url="/in")
        copies: list[Pages] = []
        copy = pack.made[-1].copy

        def copied() -> Pages | None:
            made = copy()
            assert made is not None
            copies.append(made)
            return made

        pack.made[-1].copy = copied
        fork = await env.fork()
        await fork.close()
        assert [request.headers.get("cookie") for request in copies[0].asked] == ["a=1"]
        await does(env, "new_tab", url="/other")
        assert (asked[-1].url, asked[-1].headers.get("cookie")) == (f"{ORIGIN}/other", "a=1")


async def test_the_address_is_that_of_the_page_and_not_of_what_is_in_it(pool: BrowserPool) -> None:
    framed = "<title>Framed</title><iframe src=/other></iframe>" + (
        "<button onclick=\"history.pushState(0, '', '/pushed')\">Push</button>"
        "<a href=#there>There</a>"
    )
    async with on(pool, {"/": framed, "/other": "<p>Inside"}) as (env, text, _):
        assert "Inside" in text
        assert visit_of(env).tab.url == f"{ORIGIN}/"
        assert f"url: {ORIGIN}/#there\n" in await does(env, "click", id=read(text).id("link"))
        assert visit_of(env).tab.url == f"{ORIGIN}/#there"
        assert "pushed" in await does(env, "click", id=read(text).id("button"))
        assert visit_of(env).tab.url == f"{ORIGIN}/pushed"


async def test_calls_of_one_message_run_in_order_and_one_page_is_shown(pool: BrowserPool) -> None:
    async with on(pool) as (env, text, _):
        page = read(text)
        field, save = page.id("textbox", "Word"), page.id("button", "Save")
        calls = (
            ToolCall("a", "fill", {"id": field, "text": "apple"}),
            ToolCall("b", "fly", {}),
            ToolCall("c", "click", {"id": save}),
            ToolCall("d", "click", {"id": 999}),
        )
        observation, *_, info = await env.step(Action("", calls, malformed=("not JSON",)))
        texts = [message.text for message in observation.messages]
        assert texts[0] == "not JSON"
        assert texts[1] == texts[3] == "ok"
        assert "There is no tool 'fly'" in texts[2]
        assert texts[4].startswith("there is no element [999]")
        assert "title: Done" in texts[4]
        assert [r.status for r in info["tool_results"]] == ["error", "ok", "error", "ok", "error"]


async def test_an_answer_ends_it_and_so_do_turns(pool: BrowserPool) -> None:
    async with on(pool, max_turns=2) as (env, _, _):
        assert (await env.step(call("click", id=999)))[2:4] == (False, False)
        assert (await env.step(call("click", id=999)))[2:4] == (False, True)
        with pytest.raises(RuntimeError):
            await env.step(say("x"))
        await env.reset(seed=0)
        both = (ToolCall("a", "answer", {"text": "x"}), ToolCall("b", "click", {"id": 1}))
        observation, _, terminated, *_ = await env.step(Action("", both))
        assert terminated
        assert "over" in observation.messages[1].text


# -- pages that wait -------------------------------------------------------------------------------


async def test_a_page_is_waited_for_until_it_rests(pool: BrowserPool) -> None:
    slow = FORM + (
        "<button onclick=\"fetch('/slow').then((r) => r.text()).then((t) => {"
        ' requestAnimationFrame(() => { document.title = t; }); })">Load</button>'
    )

    async with on(pool, {"/": slow, "/slow": "Loaded"}) as (env, text, pack):
        world = pack.made[-1]
        answer = world.answer

        async def late(request: WebRequest) -> WebResponse | None:
            await asyncio.sleep(0.3)
            return await answer(request)

        world.answer = late
        assert "title: Loaded" in await does(env, "click", id=read(text).id("button", "Load"))


async def test_a_page_is_reused_and_begins_anew(pool: BrowserPool) -> None:
    pack = PagesPack(options={"reusable": True})
    env = WebEnv(pack=pack, browser=pool)
    texts: list[str] = []
    reused = 0
    for _ in range(4):
        opening, info = await env.reset(seed=0)
        texts.append(opening.messages[-1].text)
        reused += info["page"] == "kept"
        await does(env, "scroll", direction="down")
    await env.close()
    assert len(set(texts)) == 1
    assert reused >= 1


# -- forks -----------------------------------------------------------------------------------------


async def test_a_fork_by_copy_is_one_and_a_typed_word_is_replayed(pool: BrowserPool) -> None:
    async with on(pool, fork="copy") as (env, text, pack):
        for act, how in (
            (None, "copy"),
            (call("fill", id=read(text).id("textbox", "Word"), text="apple"), "replay"),
            (call("press", key="Enter"), "copy"),
        ):
            if act is not None:
                await env.step(act)
            worlds = len(pack.made)
            fork = await env.fork()
            step = await fork.step(say("done"))
            assert step[4]["fork"]["how"] == how
            assert (len(pack.made) > worlds) == (how == "replay")
            assert step[1] == float(act is not None and act.tool_calls[0].name == "press")
            await fork.close()


# -- browsers that die -----------------------------------------------------------------------------


async def test_a_crashed_page_fails_its_episode_alone(pool: BrowserPool) -> None:
    async with on(pool) as (env, _, _), on(pool) as (other, _, _):
        tab = visit_of(env).tab
        with pytest.raises(EnvError):
            await tab.send("Page.crash")
        with pytest.raises(EnvError, match="died"):
            await env.step(call("scroll", direction="down"))
        assert "title: Other" in await does(other, "goto", url="/other")


async def test_a_killed_browser_fails_its_episodes_and_has_a_successor() -> None:
    pool = await BrowserPool.open(BrowserSettings(warm=0, call_s=60))
    try:
        async with on(pool) as (env, _, _):
            (pid,) = {pid for pid in browsers_of(os.getpid()) if is_of(pid, pool)}
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                await asyncio.wait([visit_of(env).tab.broken])
            with pytest.raises(EnvError):
                await env.step(call("scroll", direction="down"))
            opening, _ = await env.reset(seed=0)
            assert "Goal: Save the word" in opening.messages[-1].text
    finally:
        await pool.close()


def browsers_of(pid: int) -> set[int]:
    """Return the outermost processes of the browsers of a process: those of Playwright's driver."""
    found: set[int] = set()
    for child in children(pid):
        if b"run-driver" in command_line(child):
            found |= set(children(child))
    return found


def is_of(pid: int, pool: BrowserPool) -> bool:
    mark = pool._browsers[0]._command.environ["AGENTRL_LEASE"]  # pyright: ignore
    return mark.encode() in command_line(pid)


async def test_a_worn_browser_is_replaced_when_its_episodes_are_over() -> None:
    pool = await BrowserPool.open(BrowserSettings(warm=0, recycle_after=1, call_s=60))
    try:
        async with on(pool) as (env, _, _), on(pool) as (other, _, _):
            assert pool.figures()["browsers"] == 2
            assert "title: Other" in await does(env, "goto", url="/other")
            assert "title: Other" in await does(other, "goto", url="/other")
    finally:
        await pool.close()


async def test_a_full_pool_says_so() -> None:
    pool = await BrowserPool.open(BrowserSettings(warm=0, episodes=1, open_s=20))
    try:
        async with on(pool):
            pool.settings = BrowserSettings(warm=0, episodes=1, open_s=0.05)
            with pytest.raises(EnvError, match="no page became available"):
                await WebEnv(pack=PagesPack(), browser=pool).reset(seed=0)
    finally:
        await pool.close()
