"""What an episode copies is its own, in a browser whose clipboard all its episodes share.

Mutants seen caught: copies go to the browser's clipboard; a paste without them, or without waiting
for that of another episode; texts of the page's own listeners, of a frame or of a password taken
wrongly; a cut that leaves the text; what an episode, or the page after it, copied kept for the
next; a fork or a new tab without it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.episode_site import WebRequest, WebResponse
from agentrl_envs.web.observation import read
from tests.support.web_pages import HTML, PagesPack

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

OTHER = "http://other.test"
FIELD = "<input aria-label=Inside value='in a frame'>"
PAGE = f"""<!doctype html><title>Texts</title>
<input aria-label=First value="one  text"><textarea aria-label=Second>two
lines</textarea>
<input aria-label=Fixed value=fixed readonly>
<input aria-label=Secret type=password value=secret>
<p id=words>written words</p><button onclick="copyWords()">Copy</button>
<input aria-label=Own value=own oncopy="put(event)">
<input aria-label=None value=none oncopy="event.preventDefault()">
<iframe srcdoc="{FIELD}" title=Frame></iframe><iframe src="{OTHER}/"></iframe>
<textarea aria-label=Target></textarea><a href="/next">Next</a>
<script>
function put(event) {{
  event.clipboardData.setData("text/plain", "put by the page");
  event.preventDefault();
}}
function copyWords() {{
  getSelection().selectAllChildren(words);
  document.execCommand("copy");
}}
</script>"""
NEXT = "<!doctype html><title>Next</title><textarea aria-label=Target autofocus></textarea>"
ACTIVE_S = 5.5
"""How long a page counts as used after an action, and a little."""


def answer_other(request: WebRequest) -> WebResponse | None:
    return WebResponse(headers=HTML, body=FIELD.encode()) if OTHER in request.url else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(
        BrowserSettings(browsers=1, episodes=4, call_s=60, warm=0, tabs=2)
    )
    yield made
    await made.close()


class Player:
    """An episode on the page, and what it sees."""

    def __init__(self, env: WebEnv) -> None:
        self.env = env
        self.page = ObservedPage()
        self.reused = False

    async def begin(self) -> None:
        observation, info = await self.env.reset(seed=0)
        self.reused = info["page"] == "kept"
        self.page = read(observation.messages[-1].text)

    async def does(self, name: str, **arguments: object) -> None:
        step = await self.env.step(call(name, **arguments))
        self.page = read(step[0].messages[-1].text)

    async def copies(self, label: str, keys: str = "Control+c") -> None:
        await self.does("click", id=self.page.id("textbox", label))
        await self.does("press", key="Control+a")
        await self.does("press", key=keys)

    async def pastes(self, keys: str = "Control+v") -> str:
        """Paste into the empty target; return what is in it then."""
        await self.does("fill", id=self.page.id("textbox", "Target"), text="")
        await self.does("press", key=keys)
        return await self.value_of("Target")

    async def value_of(self, label: str) -> str:
        episode: Any = self.env._episode  # pyright: ignore[reportPrivateUsage]
        return await episode.visit.tab.evaluate(
            "(label) => document.querySelector(`[aria-label=${label}]`).value", label
        )


@asynccontextmanager
async def playing(pool: BrowserPool, **options: object) -> AsyncGenerator[Player]:
    settings = {"origins": ("http://pages.test", OTHER), "on_answer": answer_other, **options}
    pack = PagesPack(pages={"/": PAGE, "/next": NEXT}, options=settings)
    player = Player(WebEnv(pack=pack, browser=pool, fork="copy"))
    try:
        await player.begin()
        yield player
    finally:
        await player.env.close()
        await pool.rest()


async def test_what_is_copied_is_pasted(pool: BrowserPool) -> None:
    async with playing(pool) as player:
        assert await player.pastes() == "", "nothing was copied"
        await player.copies("First")
        assert await player.pastes() == await player.pastes("Shift+Insert") == "one  text"
        await player.copies("Second", "Control+Insert")
        assert await player.pastes("Control+Shift+v") == "two\nlines"
        await player.does("click", id=player.page.id("button", "Copy"))
        assert await player.pastes() == "written words"
        await player.copies("Own")
        assert await player.pastes() == "put by the page"
        for label in ("None", "Secret"):
            await player.copies(label)
            assert await player.pastes() == "put by the page", label
        await player.copies("Inside")
        assert await player.pastes() == "in a frame"


async def test_a_paste_needs_no_action_before_it(pool: BrowserPool) -> None:
    async with playing(pool) as player:
        await player.copies("First")
        await player.does("goto", url="/next")
        await asyncio.sleep(ACTIVE_S)
        await player.does("press", key="Control+v")
        assert await player.value_of("Target") == "one  text"


async def test_what_is_cut_is_pasted_and_gone(pool: BrowserPool) -> None:
    async with playing(pool) as player:
        await player.copies("First", "Control+x")
        assert await player.value_of("First") == ""
        assert await player.pastes() == "one  text"
        await player.copies("Second", "Shift+Delete")
        assert await player.value_of("Second") == ""
        await player.copies("Fixed", "Control+x")
        assert await player.value_of("Fixed") == "fixed"
        assert await player.pastes() == "two\nlines"


async def test_a_paste_into_a_frame_of_another_origin_is_the_episodes(pool: BrowserPool) -> None:
    async with playing(pool) as player:
        await player.copies("First")
        episode: Any = player.env._episode  # pyright: ignore[reportPrivateUsage]
        frame = episode.visit.tab.page.frames[-1]
        await frame.locator("input").focus()
        await player.does("press", key="Control+a")
        await player.does("press", key="Control+c")
        await player.does("press", key="Control+v")
        assert await frame.locator("input").input_value() == "one  text"


async def test_episodes_of_one_browser_do_not_share_it(pool: BrowserPool) -> None:
    async with playing(pool) as first, playing(pool) as second, playing(pool) as third:
        await first.copies("First")
        await second.copies("Second")
        await third.copies("None")
        for _ in range(6):
            texts = await asyncio.gather(*(each.pastes() for each in (first, second, third)))
            assert texts == ["one  text", "two\nlines", ""]


async def test_it_goes_along_to_other_pages_tabs_and_forks(pool: BrowserPool) -> None:
    async with playing(pool) as player:
        await player.copies("First")
        await player.does("click", id=player.page.id("link", "Next"))
        assert await player.pastes() == "one  text"
        await player.does("fill", id=player.page.id("textbox", "Target"), text="")
        fork = Player(await player.env.fork())
        fork.page = player.page
        step = await fork.env.step(call("wait", milliseconds=1))
        assert step[4]["fork"]["how"] == "copy"
        assert await fork.pastes() == "one  text"
        await fork.env.close()
        await player.does("new_tab", url="/next")
        assert await player.pastes() == "one  text"


async def test_the_next_episode_on_a_page_begins_without(pool: BrowserPool) -> None:
    async with playing(pool, reusable=True) as player:
        await player.copies("First")
        episode: Any = player.env._episode  # pyright: ignore[reportPrivateUsage]
        # A page may also copy when nobody looks any more.
        await episode.visit.tab.page.keyboard.press("Control+c")
        await player.env.close()
        await pool.rest()
        await player.begin()
        assert player.reused
        assert await player.pastes() == ""
