"""Episodes of MiniWoB++ in our environment: one after another, and many at once."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentrl.env import Action, call
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.miniwob.pack import MiniWobPack
from agentrl_envs.web.miniwob.world import MiniWobSite
from agentrl_envs.web.observation import Kind, read
from benchmarks.browsing.times import timed

FAMILY = "click-test"


class LoadedPack(MiniWobPack):
    """The same problems, each on a page of its own that is loaded for it."""

    def world(self, task: Task) -> MiniWobSite:
        """Return a world whose page serves one episode."""
        world = super().world(task)
        world.reusable = False
        return world


class UnpreparedPack(LoadedPack):
    """The same, and no page is loaded before its episode begins."""

    def world(self, task: Task) -> MiniWobSite:
        """Return a world that tells nobody what could be loaded ahead."""
        world = super().world(task)
        setattr(world, "ahead", lambda: None)  # noqa: B010 - of this one world
        return world


Page = Literal["kept", "ahead", "loaded"]
"""Of an episode: the one that is there, one loaded while the policy thought, or one loaded then."""
_PACKS: Mapping[Page, type[MiniWobPack]] = {
    "kept": MiniWobPack,
    "ahead": LoadedPack,
    "loaded": UnpreparedPack,
}


@dataclass(slots=True)
class Seconds:
    """What resets and steps took."""

    resets: list[float] = field(default_factory=list[float])
    steps: list[float] = field(default_factory=list[float])


def _env(pool: BrowserPool, kinds: Sequence[Kind], page: Page) -> WebEnv:
    pack = _PACKS[page](families=FAMILY)
    return WebEnv(pack=pack, observation=list(kinds), screen=(400, 300), browser=pool)


async def one_after_another(kinds: Sequence[Kind], episodes: int, page: Page) -> Seconds:
    """Play episodes one at a time: reset, a click that changes nothing, one that solves the task.

    Between them, as while a policy thinks, the pool makes pages ready.
    """
    pool = await BrowserPool.open(BrowserSettings(warm=2))
    env = _env(pool, kinds, page)
    seconds = Seconds()
    try:
        for number, task in zip(range(episodes + 3), _tasks(env, "train"), strict=False):
            reset_s, (opening, _) = await timed(env.reset(seed=0, options={"task": task}))
            step_s, step = await timed(env.step(call("click_at", x=390, y=290)))
            assert not step[2], step
            step = await env.step(_click(opening.messages))
            assert step[1] == 1.0, step
            if number >= 3:  # the first ones start the browser and fill its caches
                seconds.resets.append(reset_s)
                seconds.steps.append(step_s)
            await env.close()
            await pool.rest()
    finally:
        await env.close()
        await pool.close()
    return seconds


def _tasks(env: WebEnv, split: Split) -> Iterator[Task]:
    return iter(env.tasks(split, seed=0))


def _click(messages: Sequence[Message]) -> Action:
    found = read(messages[-1].text).all("button")
    return call("click", id=found[0].id if found and found[0].id else 1)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What so many episodes at once came to."""

    episodes_per_s: float
    bytes_per_episode: float | None


async def at_once(count: int, each: int, *, page: Page = "kept", executable: str = "") -> Crowd:
    """Play `each` episodes in each of `count` environments that share a browser."""
    settings = BrowserSettings(warm=0, episodes=count, executable=executable)
    pool = await BrowserPool.open(settings)
    envs = [_env(pool, ["axtree"], page) for _ in range(count)]

    async def play(env: WebEnv, episodes: int) -> None:
        for _, task in zip(range(episodes), _tasks(env, "train"), strict=False):
            opening, _ = await env.reset(seed=0, options={"task": task})
            await env.step(_click(opening.messages))

    try:
        await asyncio.gather(*(play(env, 2) for env in envs))
        began = time.perf_counter()
        await asyncio.gather(*(play(env, each) for env in envs))
        took_s = time.perf_counter() - began
        held = pool.memory_bytes()
    finally:
        for env in envs:
            await env.close()
        await pool.close()
    return Crowd(count * each / took_s, held / count if held else None)
