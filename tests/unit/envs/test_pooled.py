"""What environments share that play in a pool: whose it is, its places, its chores, its episodes.

On a pool of numbers, without a browser or a desktop.

Mutants seen caught: a step that failed lets the episode go on; an opening that failed keeps its
part, or is told what comes next; a fork tells twice; what comes next fails an episode that is not
it; a fork has its original's episode, or a pool of its own for the caller's; a truncated episode
goes on; the system message last; seeds without the task, the seed or the sample; a fork of what may
not be forked; a pool left open, or closed that is the caller's.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest

from agentrl.env import Action, Info, Observation, Step, ToolSchema, call, say
from agentrl.errors import ConfigError, EnvError, ForkUnsupported
from agentrl.message import Content, Message
from agentrl.runtime.scope import run_scope
from agentrl.task import Split, Task
from agentrl.testing import check_env
from agentrl.tool import ToolContext
from agentrl_envs.pooled import (
    BackgroundTasks,
    PooledEnv,
    PooledEpisode,
    PoolHandle,
    PoolKind,
    PoolPermits,
)

DEADLINE_S = 30.0


@dataclass(frozen=True)
class Settings:
    count: int = 2
    open_s: float = DEADLINE_S


class Numbers:
    """A pool of numbers: who takes one counts up from 0, and gives it back."""

    opened: list["Numbers"]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lent = 0
        self.closed = 0

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        made = cls(settings)
        cls.opened.append(made)
        return made

    async def close(self) -> None:
        self.closed += 1


NUMBERS = PoolKind("number", Numbers, Settings)


@pytest.fixture(autouse=True)
def opened() -> list[Numbers]:
    Numbers.opened = []
    return Numbers.opened


@dataclass(slots=True, kw_only=True)
class Counted(PooledEpisode):
    pool: Numbers
    at: int = 0


@dataclass
class CountingPack:
    has_gold: bool = True

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        start = 1 if split == "train" else 4
        for number in range(start, start + 3):
            yield Task(
                prompt=f"Count to {number}", id=f"to-{number}", split=split, answer=str(number)
            )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        return say("up" if str(seen[-1].text).rpartition(" ")[2] != task.answer else "stop")


class Counting(PooledEnv[Counted, CountingPack, Numbers, Settings]):
    """Say up until the number is the task's, then stop."""

    name = "counting"
    forks = ("replay", "none")

    def __init__(self, *, fork: Any = "replay", given: Any = None, **options: Any) -> None:
        super().__init__(
            pack=options.pop("pack", CountingPack()),
            pack_kwargs={},
            pools=NUMBERS,
            given=given,
            max_turns=options.pop("max_turns", 12),
            system=options.pop("system", ""),
            fork=fork,
            step_s=DEADLINE_S,
            gold_names=options.pop("gold_names", False),
        )
        self.breaks: str = options.pop("breaks", "")
        self.seeds = list[int]()
        self.told = list[list[str]]()
        self.known_s = list[float]()
        self.opened_s = list[float]()

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return ()

    async def _begin(self, task: Task, context: ToolContext) -> Counted:
        pool = await self._holding.get()
        pool.lent += 1
        self.seeds.append(context.seed)
        return Counted(task=task, goal=str(task.prompt), context=context, pool=pool)

    async def _opening(self, episode: Counted) -> Content:
        if self.breaks == "opening":
            raise EnvError("nothing to be seen")
        self.opened_s.append(time.monotonic())
        return f"{episode.goal}. You are at 0"

    def _began(self, episode: Counted) -> Info:
        return {"lent": episode.pool.lent}

    def _expects(self, tasks: Sequence[Task], known_s: float) -> None:
        if self.breaks == "ahead":
            raise KeyError("no such task")
        self.told.append([task.id for task in tasks])
        self.known_s.append(known_s)

    async def _step(self, episode: Counted, action: Action) -> Step:
        if self.breaks == "step":
            raise EnvError("it broke")
        if action.text == "up":
            episode.at += 1
        done = action.text != "up"
        won = action.text == "stop" and str(episode.at) == episode.task.answer
        seen = Observation((Message("user", f"You are at {episode.at}"),))
        return seen, float(won), done, not done and episode.turns == self._max_turns, {}

    async def _release(self, episode: Counted) -> None:
        episode.pool.lent -= 1


@asynccontextmanager
async def counting(**options: Any) -> AsyncGenerator[Counting]:
    env = Counting(**options)
    try:
        yield env
    finally:
        await env.close()


# -- an environment --------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", ["replay", "none"])
async def test_every_promise_is_kept(fork: str) -> None:
    promises = await check_env(Counting(fork=fork))
    assert "gold scores" in promises
    assert ("forks do not interfere" in promises) == (fork == "replay")
    assert all(pool.lent == 0 and pool.closed for pool in Numbers.opened)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (call("click", id=2), "Yes"),
        (call("computer", action="click", element=1), "No"),
        (call("computer", action="drag", element=2, to_element=1), "Yes"),
        (call("click", id=3), ""),
        (call("click", id=9), ""),
        (call("click", id=[2]), ""),
        (call("press", key="Enter"), ""),
        (say("Done"), "Done"),
        (replace(call("click", id=2), text="I agree."), "I agree."),
    ],
)
def test_a_gold_player_may_name_what_it_acts_on(action: Action, text: str) -> None:
    """By the page that was shown last."""

    class PagePack(CountingPack):
        def gold(self, task: Task, seen: Sequence[Message]) -> Action:
            return action

    pages = ['button "Maybe" [2]', 'button "No" [1]\nbutton "Yes" [2]\ntextbox [3]']
    seen = [Message("user", pages[0]), Message("assistant", ""), Message("tool", pages[1])]
    task = Task(prompt="Agree.")
    assert Counting(pack=PagePack(), gold_names=True).gold(task, seen) == replace(action, text=text)
    assert Counting(pack=PagePack()).gold(task, seen) == action


async def test_a_pack_without_players_makes_no_player() -> None:
    assert not hasattr(Counting(pack=CountingPack(has_gold=False)), "gold")
    assert hasattr(Counting(), "gold")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_turns": 0}, "max_turns must be at least 1, got 0"),
        ({"fork": "copy"}, "fork must be replay or none for a number, got 'copy'"),
        (
            {"given": {"colour": 1}},
            r"number has no settings \['colour'\]; its settings are count, open_s",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Counting(**wrong)


async def test_steps_out_of_turn_are_refused() -> None:
    async with counting() as env:
        with pytest.raises(RuntimeError, match="no episode is running"):
            await env.step(say("up"))
        await env.reset(seed=0)
        await env.step(say("stop"))
        for late in (env.step(say("up")), env.fork()):
            with pytest.raises(RuntimeError, match="is over"):
                await late


async def test_a_truncated_episode_is_over() -> None:
    async with counting(max_turns=2) as env:
        await env.reset(seed=0)
        assert (await env.step(say("up")))[2:4] == (False, False)
        assert (await env.step(say("up")))[2:4] == (False, True)
        with pytest.raises(RuntimeError, match="is over"):
            await env.step(say("up"))


async def test_what_comes_next_is_told_once_the_episode_has_begun() -> None:
    """And only where somebody knows: a fork does not."""
    one, two = list(CountingPack().tasks("train", 0))[:2]
    async with counting() as env:
        await env.reset(options={"task": one, "next": (two, one)})
        await (await env.fork()).close()
        await env.reset(options={"task": one})
        await env.reset(options={"task": one, "next": ()})
        assert env.told == [["to-2", "to-1"], []]
        assert env.known_s == sorted(env.known_s)
        assert env.known_s[0] <= env.opened_s[0], "as of when the reset was asked for"
        env.breaks = "opening"
        with pytest.raises(EnvError):
            await env.reset(options={"task": one, "next": (two,)})
        assert len(env.told) == 2


async def test_a_task_that_comes_next_and_cannot_be_prepared_fails_itself() -> None:
    async with counting(breaks="ahead") as env:
        opening, _ = await env.reset(options={"next": (CountingPack(),)})
        assert "You are at 0" in opening.messages[-1].text


async def test_an_opening_that_fails_keeps_nothing(opened: list[Numbers]) -> None:
    async with counting(breaks="opening") as env:
        with pytest.raises(EnvError, match="nothing to be seen"):
            await env.reset(seed=0)
        assert opened[0].lent == 0


async def test_a_step_that_fails_ends_the_episode(opened: list[Numbers]) -> None:
    async with counting(breaks="step") as env:
        await env.reset(seed=0)
        with pytest.raises(EnvError, match="it broke"):
            await env.step(say("up"))
        with pytest.raises(RuntimeError, match="is over"):
            await env.step(say("up"))
        await env.reset(seed=0)
        assert opened[0].lent == 1, "the part of the one before was given back"


async def test_the_opening_has_the_system_message_first_and_the_told(
    opened: list[Numbers],
) -> None:
    async with counting(system="Be brief.") as env:
        opening, info = await env.reset(seed=0)
        assert [message.role for message in opening.messages] == ["system", "user"]
        assert opening.messages[0].text == "Be brief."
        assert info == {"lent": 1}


async def test_seeds_of_tools_differ_by_task_seed_and_sample() -> None:
    async with counting() as env:
        first, second = list(env.tasks("train"))[:2]
        for seed, task, sample in (
            (0, first, 0),
            (0, first, 0),
            (1, first, 0),
            (0, second, 0),
            (0, first, 1),
        ):
            await env.reset(seed=seed, options={"task": task, "sample": sample})
        assert env.seeds[0] == env.seeds[1]
        assert len({*env.seeds}) == 4


async def test_a_fork_tells_once_how_it_was_made() -> None:
    async with counting() as env:
        await env.reset(seed=0)
        await env.step(say("up"))
        fork = await env.fork()
        info = (await fork.step(say("up")))[4]
        assert info["fork"]["how"] == "replay"
        assert info["fork"]["seconds"] >= 0
        assert "fork" not in (await fork.step(say("up")))[4]
        assert "fork" not in (await env.step(say("up")))[4]
        await fork.close()


async def test_no_fork_is_made_where_none_is_wanted() -> None:
    async with counting(fork="none") as env:
        await env.reset(seed=0)
        with pytest.raises(ForkUnsupported):
            await env.fork()


# -- whose the pool is -----------------------------------------------------------------------------


async def test_an_environments_own_pool_ends_with_it_and_a_fork_has_another(
    opened: list[Numbers],
) -> None:
    async with counting() as env:
        await env.reset(seed=0)
        fork = await env.fork()
        assert len(opened) == 2
        await fork.close()
        assert [pool.closed for pool in opened] == [0, 1]
        await env.step(say("up"))
    assert [pool.closed for pool in opened] == [1, 1]
    assert [pool.lent for pool in opened] == [0, 0]


async def test_a_scope_owns_one_pool_for_all_of_the_same_settings(opened: list[Numbers]) -> None:
    async with run_scope():
        for given in ({"count": 3}, Settings(count=3), {"count": 4}):
            async with counting(given=given) as env:
                await env.reset(seed=0)
                fork = await env.fork()
                await fork.close()
        assert [pool.settings.count for pool in opened] == [3, 4]
        assert [pool.closed for pool in opened] == [0, 0]
    assert [pool.closed for pool in opened] == [1, 1]


async def test_a_given_pool_stays_the_callers(opened: list[Numbers]) -> None:
    given = Numbers(Settings(count=5))
    async with counting(given=given) as env:
        await env.reset(seed=0)
        fork = await env.fork()
        assert given.lent == 2
        await fork.close()
        await fork.reset(seed=0)
        assert given.lent == 2, "a fork goes on with the caller's, too"
        await fork.close()
        await env.close()
        await env.reset(seed=0)
    assert (opened, given.lent, given.closed) == ([], 0, 0)


async def test_a_pool_is_opened_when_it_is_needed_and_again_after_the_end(
    opened: list[Numbers],
) -> None:
    holding = PoolHandle(NUMBERS, None)
    assert (holding.now, opened) == (None, [])
    pool = await holding.get()
    assert holding.now is pool is await holding.get()
    await holding.close()
    await holding.close()
    assert (holding.now, pool.closed) == (None, 1)
    assert await holding.get() is not pool
    await holding.close()


# -- places ----------------------------------------------------------------------------------------


async def test_who_waits_too_long_for_a_place_fails() -> None:
    places = PoolPermits("number", 2, within_s=0.01)
    await places.take()
    await places.take()
    with pytest.raises(
        EnvError, match=r"no number became available within 0.01 s: all 2 are in use"
    ):
        await places.take()
    places.give()
    await places.take()


async def test_a_place_that_comes_free_is_taken() -> None:
    places = PoolPermits("number", 1, within_s=DEADLINE_S)
    await places.take()
    waiting = asyncio.ensure_future(places.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    places.give()
    await asyncio.wait_for(waiting, DEADLINE_S)


# -- chores ----------------------------------------------------------------------------------------


@dataclass
class Log:
    done: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, name: str) -> None:
        await self.go.wait()
        self.done.append(name)

    async def more(self, chores: BackgroundTasks) -> None:
        chores.begin(self.work("second"))
        await self.work("first")

    async def fails(self) -> None:
        raise EnvError("nobody waits for this")


async def test_rest_waits_for_what_chores_begin_and_for_those_that_fail() -> None:
    log, chores = Log(), BackgroundTasks()
    chores.begin(log.more(chores))
    chores.begin(log.fails())
    resting = asyncio.ensure_future(chores.wait())
    await asyncio.sleep(0)
    assert not resting.done()
    log.go.set()
    await asyncio.wait_for(resting, DEADLINE_S)
    assert sorted(log.done) == ["first", "second"]


async def test_after_the_end_only_what_ends_something_begins() -> None:
    log, chores = Log(), BackgroundTasks()
    log.go.set()
    chores.closed = True
    chores.begin(log.work("late"))
    chores.begin(log.work("ending"), ending=True)
    await asyncio.wait_for(chores.wait(), DEADLINE_S)
    assert log.done == ["ending"]


async def test_what_is_left_off_is_not_done() -> None:
    log, chores = Log(), BackgroundTasks()
    chores.begin(log.work("first"))
    await asyncio.sleep(0)
    await asyncio.wait_for(chores.cancel(), DEADLINE_S)
    log.go.set()
    await asyncio.wait_for(chores.wait(), DEADLINE_S)
    assert log.done == []
