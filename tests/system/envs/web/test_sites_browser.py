"""Our own sites in a real browser: players solve all, promises hold, forks are copies."""

from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import Action, Step, call
from agentrl.message import Message
from agentrl.task import Task
from agentrl.testing import check_env
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.observation import read
from agentrl_envs.web.sites import shop_pack, wiki_pack
from agentrl_envs.web.sites.pack import TemplateSitePack
from agentrl_envs.web.sites.shop.site import SHOP
from agentrl_envs.web.sites.wiki.site import WIKI
from tests.support.examples import spread_cases

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

TEMPLATES = [(shop_pack, t.name) for t in SHOP.templates] + [
    (wiki_pack, t.name) for t in WIKI.templates
]
NAMES = [f"{pack.__name__}-{name}" for pack, name in TEMPLATES]
Pack = Callable[..., TemplateSitePack[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, warm=0, tabs=4))
    yield made
    await made.close()


def first_task(pack: TemplateSitePack[Any]) -> Task:
    (task,) = islice(pack.tasks("heldout", 1), 1)
    return task


@pytest.mark.parametrize(
    ("pack", "name"),
    spread_cases(TEMPLATES, 10),
    ids=[f"{p.__name__}-{n}" for p, n in TEMPLATES],
)
async def test_gold_earns_one(pool: BrowserPool, pack: Pack, name: str) -> None:
    made = pack(templates=[name])
    env = WebEnv(pack=made, browser=pool)
    episode = await play_gold(env, first_task(made))
    await env.close()
    assert episode.reward == 1, episode.messages[-1].text
    assert 3 <= len(episode.actions) <= 15


@pytest.mark.slow
@pytest.mark.parametrize("pack", spread_cases([shop_pack, wiki_pack], 1))
@pytest.mark.nightly
async def test_the_environment_keeps_its_promises(pool: BrowserPool, pack: Pack) -> None:
    env = WebEnv(pack=pack(levels=[1]), browser=pool, fork="copy")
    promises = await check_env(env, episodes=1, tasks=8)
    assert {"gold scores", "forks do not interfere", "reset is deterministic"} <= {*promises}


async def went_on(env: WebEnv, task: Task, seen: list[Message]) -> tuple[list[Action], list[Step]]:
    """Let the gold player go on from what was seen."""
    actions, steps = list[Action](), list[Step]()
    seen = list(seen)
    while not steps or not steps[-1][2]:
        actions.append(env.gold(task, seen))
        steps.append(await env.step(actions[-1]))
        seen += [actions[-1].message, *steps[-1][0].messages]
    return actions, steps


async def test_a_fork_in_the_middle_of_an_order_is_a_copy_and_both_arrive(
    pool: BrowserPool,
) -> None:
    made = shop_pack(templates=["order"])
    env = WebEnv(pack=made, browser=pool, fork="copy")
    task = first_task(made)
    opening, _ = await env.reset(seed=1, options={"task": task})
    seen = list(opening.messages)
    # The product is in the cart and the cart is shown: the state is on the server alone.
    while "Check out" not in seen[-1].text:
        action = env.gold(task, seen)
        seen += [action.message, *(await env.step(action))[0].messages]
    fork = await env.fork()
    _, there = await went_on(fork, task, seen)
    assert there[0][4]["fork"]["how"] == "copy"
    _, here = await went_on(env, task, seen)
    assert (there[-1][1], here[-1][1]) == (1, 1)
    assert [step[0] for step in there] == [step[0] for step in here]
    await fork.close()
    await env.close()


async def test_scripts_of_the_pages_run(pool: BrowserPool) -> None:
    made = shop_pack(templates=["review"])
    env = WebEnv(pack=made, browser=pool)
    task = first_task(made)
    opening, _ = await env.reset(seed=1, options={"task": task})
    product = f"http://shop.invalid/product/{task.data['wanted']['product']}"
    shown = (await env.step(call("goto", url=product)))[0].messages[-1].text
    assert "Your review" not in shown
    assert opening.messages[-1].text.startswith("Goal: Review the")
    toggle = read(shown).id("button", "Reviews (0)")
    shown = (await env.step(call("click", id=toggle)))[0].messages[-1].text
    assert "Your review" in shown
    await env.close()
