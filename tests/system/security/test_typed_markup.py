"""Markup that an agent types into a page: it is text to the page's judge, and code to nobody.

The terminal of MiniWoB++ puts what is typed into its own markup, which used to pay for
`<img onerror=core.endEpisode(1)>`. Each attempt here names the function that ends an episode.

Mutants seen caught: the policy with 'unsafe-inline'; a verdict read on whatever page is there; a
page kept although its policy refused something.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import Step, call
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.episode_site import WebRequest
from agentrl_envs.web.miniwob import MiniWobPack, pages, task_of
from agentrl_envs.web.miniwob.world import RELOADED
from agentrl_envs.web.observation import read
from agentrl_envs.web.sites import shop_pack, wiki_pack
from tests.support.watchdog import watched

WINS = "core.endEpisode(1)"
RUNS_BY_ITSELF = (
    f"<img src=x onerror={WINS}>",
    f"<video src=x onerror={WINS}>",
    f"<style onload={WINS}></style>",
    f"<details open ontoggle={WINS}>x</details>",
    f"<svg><animate onbegin={WINS} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>parent.{WINS}</script>'></iframe>",
    f"<iframe src=javascript:parent.{WINS}></iframe>",
    f"<object data=javascript:{WINS}></object>",
)
CLICKED = (
    f"<a href=javascript:{WINS}>prize</a>",
    f"<form action=javascript:{WINS}><button>prize</button></form>",
    f"<base href=javascript:/{WINS}//><a href=x>prize</a>",
    f"<button onclick={WINS}>prize</button>",
)
LEAVING = (
    "<meta http-equiv=refresh content=0;url=/miniwob/click-test.html>",
    "<a href=/miniwob/click-test.html>prize</a>",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, settle_s=1))
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(pool: BrowserPool) -> AsyncGenerator[WebEnv]:
    made = WebEnv(pack=MiniWobPack(families="terminal"), browser=pool, screen=(400, 300))
    yield made
    await made.close()


async def typed(env: WebEnv, markup: str) -> Step:
    """Begin an episode and type a line into its terminal."""
    await env.reset(seed=0, options={"task": task_of("terminal", 7)})
    await env.step(call("click_at", x=80, y=120))
    await page_of(env).page.keyboard.type(markup)
    entered = await env.step(call("press", key="Enter"))
    return entered if entered[2] else await env.step(call("wait", milliseconds=400))


def page_of(env: WebEnv) -> Any:
    return env._running().visit.tab  # pyright: ignore[reportPrivateUsage]


@pytest.mark.chromium
@pytest.mark.asyncio(loop_scope="module")
class TestTerminal:
    """The page on which typed markup becomes markup."""

    @watched
    async def test_the_markup_is_there_and_does_nothing(self, env: WebEnv) -> None:
        for markup in RUNS_BY_ITSELF:
            _, reward, terminated, _, _ = await typed(env, markup)
            assert (reward, terminated) == (0, False), markup
            script = "() => terminal.querySelector('.command > *') !== null"
            assert await page_of(env).evaluate(script), markup

    async def test_what_is_clicked_does_nothing_either(self, env: WebEnv) -> None:
        for markup in CLICKED:
            observation = (await typed(env, markup))[0]
            prize = read(observation.messages[0].text).find(contains="prize")
            assert (await env.step(call("click", id=prize.id)))[1] == 0, markup

    async def test_leaving_the_page_ends_the_episode_without_a_reward(self, env: WebEnv) -> None:
        for markup in LEAVING:
            observation, reward, terminated, _, info = await typed(env, markup)
            if not terminated:
                prize = read(observation.messages[0].text).find(contains="prize")
                _, reward, terminated, _, info = await env.step(call("click", id=prize.id))
            assert (reward, terminated) == (0, True), markup
            assert info["reason"] == "the page of the problem was left"

    async def test_a_page_that_was_to_run_something_is_thrown_away(self, pool: BrowserPool) -> None:
        pack = MiniWobPack(families="click-test")
        origins: list[str] = []
        for markup in ("<b>x</b>", f"<img src=x onerror={WINS}>", "<b>x</b>"):
            env = WebEnv(pack=pack, browser=pool, screen=(400, 300))
            await env.reset(seed=0, options={"task": task_of("click-test", 1)})
            origins.append(env._running().visit.origin)  # pyright: ignore[reportPrivateUsage]
            script = "(html) => area.append(document.createRange().createContextualFragment(html))"
            await page_of(env).evaluate(script, markup)
            await env.step(call("wait", milliseconds=200))
            await env.close()
            await pool.rest()
        assert origins == ["new", "kept", "new"]


def test_pages_with_typed_markup_serve_one_episode() -> None:
    assert "terminal" in RELOADED


@pytest.mark.parametrize("family", ["terminal", "email-inbox", "use-colorwheel"])
def test_every_answer_has_its_own_secret(family: str) -> None:
    asked = WebRequest(method="GET", url=pages.url_of(family), headers={})
    first, second = pages.answer(asked), pages.answer(asked)
    assert first is not None
    assert second is not None
    policies = [one.headers["content-security-policy"] for one in (first, second)]
    nonces = [policy.partition("'nonce-")[2].partition("'")[0] for policy in policies]
    assert nonces[0] != nonces[1]
    for answer, policy, nonce in zip((first, second), policies, nonces, strict=True):
        assert f"<script nonce={nonce}>".encode() in answer.body
        assert b"<script>" not in answer.body.partition(b"<body")[0].replace(b'"<script>', b"")
        scripts = policy.partition("script-src ")[2].partition(";")[0]
        assert "unsafe-inline" not in scripts
        assert ("unsafe-eval" in scripts) == (family == "use-colorwheel")


@pytest.mark.parametrize("pack", [shop_pack, wiki_pack])
async def test_our_sites_run_nothing_but_their_own(pack: Any) -> None:
    chosen = pack()
    world = chosen.world(next(iter(chosen.tasks("train", 0))))
    answer = await world.answer(WebRequest(method="GET", url=world.start_url, headers={}))
    policy = answer.headers["content-security-policy"]
    assert policy.partition("script-src ")[2].startswith("'nonce-")
    assert "'unsafe-inline'" not in policy.partition("script-src ")[2].partition(";")[0]
    assert b"<script>" not in answer.body
