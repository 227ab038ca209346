"""`check_env`: an environment's promises, proven on yours."""

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from agentrl.authoring.env_contract import (
    IDS_ARE_UNIQUE,
    RESET_OPENS,
    RESET_RETURNS,
    REWARDS_ARE_FINITE,
    SPLITS_HAVE_TASKS,
    STEP_RETURNS,
    TASKS_ARE_JSON,
    TASKS_ARE_TASKS,
    TASKS_HAVE_TEXTS,
    TASKS_KNOW_THEIR_SPLIT,
    check_opening,
    check_step,
    describe_missing_tasks,
    read_tasks,
)
from agentrl.authoring.gold import play_gold
from agentrl.env import Action, Env, GoldPlayer, Observation, Step, call, say
from agentrl.errors import CheckError, ContractError, EnvError, ForkUnsupported, blame
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import run_in_thread
from agentrl.task import SPLITS, Split, Task
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.testing.promises import PromiseCheck

T = TypeVar("T")


async def check_env(
    env: Env,
    *,
    episodes: int = 3,
    tasks: int = 32,
    gold_reward: float = 1.0,
    max_turns: int = 16,
    timeout_s: float = 60.0,
    grace_s: float = 5.0,
    actions: Sequence[Action] = (),
) -> tuple[str, ...]:
    """Prove an environment's promises and return them.

    Everything runs in a scope, as it does in a run, and the environment is closed at the end.

    Args:
        env: The environment.
        episodes: Number of episodes of each split to play.
        tasks: Number of tasks of each split to compare.
        gold_reward: Reward that the gold player, if there is one, must earn; doing nothing must
            earn less.
        max_turns: Largest number of turns of an episode.
        timeout_s: Deadline of every call.
        grace_s: Time after close in which whatever was started must be gone.
        actions: Actions to do around a fork where there is no gold player.

    Returns:
        The promises that were proven, in words, such as `gold scores`.

    Raises:
        CheckError: A promise is broken; the text begins with it.
    """
    check = _Check(
        env=env,
        tasks=tasks,
        episodes=episodes,
        gold_reward=gold_reward,
        max_turns=max_turns,
        timeout_s=timeout_s,
        grace_s=grace_s,
        actions=list(actions) or [say("")] * 2,
    )
    whole = isinstance(env, Env)  # pyright: ignore[reportUnnecessaryIsInstance]
    check.expect(whole, "the environment is an agentrl.Env", _describe_missing_members(env))
    try:
        await check.run()
    finally:
        # A close that fails was reported where it was checked.
        with suppress(CheckError):
            await check.close()
    return tuple(check.proven)


@dataclass(slots=True, kw_only=True)
class _Check(PromiseCheck):
    env: Env
    tasks: int
    episodes: int
    gold_reward: float
    max_turns: int
    timeout_s: float
    grace_s: float
    actions: list[Action]

    async def run(self) -> None:
        async with run_scope():
            sample = await self.check_tasks()
            # What is imported or opened once per process is there after this, and is no leak.
            await self.warm_up(sample[0])
        before = ProcessHoldings.take()
        async with run_scope():
            await self.warm_up(sample[0])
            # What the scope owns is open now, until its end.
            within = ProcessHoldings.take()
            await self.check_episodes(sample)
            try:
                await check_no_leak(within, grace_s=self.grace_s)
            except CheckError:
                # Another task may have opened what the scope keeps, such as the builder of an
                # image. A leak grows when the same episodes are played again.
                opened = ProcessHoldings.take()
                await self.check_episodes(sample)
                await check_no_leak(opened, grace_s=self.grace_s)
        await check_no_leak(before, grace_s=self.grace_s)
        self.note("nothing is left after close")

    async def warm_up(self, task: Task) -> None:
        """Play once without tools and, where there is a gold player, once with what it uses.

        The answer is one that a verifier has to look at.
        """
        await self.play(task, [say("0")])
        await self.close()
        if await self.find_gold_actions(task) is not None:
            await self.close()

    async def check_episodes(self, sample: list[Task]) -> None:
        for task in sample:
            await self.check_reset(task)
            await self.check_steps(task)
            await self.check_score(task)
        await self.check_fork(sample[0])
        await self.check_cancelled(sample[0])
        await self.check_close(sample[0])

    async def check_tasks(self) -> list[Task]:
        tasks_by_split: dict[Split, list[Task]] = {}
        for split in SPLITS:
            first, again = [await self.read_first_tasks(split) for _ in range(2)]
            self.expect(
                first == again,
                "tasks are the same for the same seed",
                f"tasks({split!r}, seed=0) differed between two calls",
            )
            if not first:
                raise CheckError(describe_missing_tasks(self.env, split))
            self.note(SPLITS_HAVE_TASKS)
            tasks_by_split[split] = first
        train, heldout = (
            {name: task for task in tasks_by_split[split] for name in (task.id, task.fingerprint)}
            for split in SPLITS
        )
        shared = [task for name, task in heldout.items() if name in train]
        self.expect(
            not shared,
            "splits are disjoint",
            ", ".join(f"{task.id!r} ({task.prompt!r:.80})" for task in shared[:3])
            + " are in both by id or by prompt; decide a problem's split by its own text with "
            "agentrl.task.split_of, and put what tells two problems apart into the prompt",
        )
        return [task for split in SPLITS for task in tasks_by_split[split][: self.episodes]]

    async def read_first_tasks(self, split: Split) -> list[Task]:
        def read() -> list[Task]:
            return list(islice(read_tasks(self.env, split, seed=0), self.tasks))

        tasks = await self.await_call("tasks", run_in_thread(read))
        self.note(TASKS_ARE_TASKS, TASKS_KNOW_THEIR_SPLIT, TASKS_HAVE_TEXTS, TASKS_ARE_JSON)
        self.note(IDS_ARE_UNIQUE)
        return tasks

    async def check_reset(self, task: Task) -> None:
        first = await self.reset(task)
        self.expect(
            first == await self.reset(task),
            "reset is deterministic",
            f"task {task.id!r} opened differently with the same seed",
        )
        unnamed = [await self.await_call("reset", self.env.reset(seed=7)) for _ in range(2)]
        self.expect(
            unnamed[0][0] == unnamed[1][0],
            "reset is deterministic",
            "reset(seed=7) opened differently twice",
        )

    async def check_steps(self, task: Task) -> None:
        for name, probe in _PROBES.items():
            await self.reset(task)
            reply, _, terminated, truncated, _ = await self.step(probe)
            self.expect(
                bool(reply.messages) or terminated or truncated,
                f"{name} is answered",
                f"task {task.id!r}: the episode goes on with nothing new to see",
            )

    async def check_score(self, task: Task) -> None:
        idle = [say("")] * self.max_turns
        first, again = [await self.play(task, idle) for _ in range(2)]
        self.expect_same(
            first, again, "steps are deterministic", f"task {task.id!r}, doing nothing"
        )
        earned = sum(step[1] for step in first)
        self.expect(
            earned < self.gold_reward,
            "doing nothing does not score",
            f"empty answers to task {task.id!r} earned {earned:g}, as much as the gold player must "
            f"(gold_reward, {self.gold_reward:g})",
        )
        if any(step[2] or step[3] for step in first):
            await self.expect_refusal("a step after the end raises", task)
        gold = await self.find_gold_actions(task)
        if gold is None:
            return
        first, again = [await self.play(task, gold) for _ in range(2)]
        self.expect_same(first, again, "steps are deterministic", f"task {task.id!r}, playing gold")
        earned = sum(step[1] for step in first)
        self.expect(
            earned >= self.gold_reward,
            "gold scores",
            f"the gold player earned {earned:g} on task {task.id!r}, but must earn at least "
            f"{self.gold_reward:g}: mend it, or say what it earns (gold_reward, --gold-reward); it "
            f"did {[action.message for action in gold]}",
        )
        await self.expect_refusal("a step after the end raises", task)

    async def find_gold_actions(self, task: Task) -> list[Action] | None:
        if not isinstance(self.env, GoldPlayer):
            return None
        playing = play_gold(self.env, task, max_turns=self.max_turns)
        with blame(EnvError, f"the gold player on task {task.id!r}"):
            return list((await asyncio.wait_for(playing, self.timeout_s * self.max_turns)).actions)

    async def expect_refusal(self, promise: str, task: Task) -> None:
        try:
            with blame(EnvError, "step"):
                async with asyncio.timeout(self.timeout_s):
                    await self.env.step(say(""))
        except EnvError:
            self.note(promise)
        else:
            raise CheckError(
                f"{promise}: the environment took one more action on task {task.id!r}; raise "
                "RuntimeError when no episode is running"
            )

    async def check_fork(self, task: Task) -> None:
        if self.env.fork_strategy == "none":
            await self.reset(task)
            try:
                await self.await_call("fork", self.env.fork())
            except ForkUnsupported:
                self.note("a fork is refused")
                return
            raise CheckError("a fork is refused: fork_strategy is 'none' and fork() returned")
        # One gold solution and idling are two different ways on from every turn.
        actions = await self.find_gold_actions(task) or self.actions
        alone = await self.play(task, actions)
        for turns in range(len(alone)):
            await self.check_fork_after(task, actions, turns, alone)

    async def check_fork_after(
        self, task: Task, actions: list[Action], turns: int, alone: list[Step]
    ) -> None:
        """Fork after some turns: whoever goes first, the other must not notice."""
        where = f"task {task.id!r}, forked after {turns} turns"
        await self.play(task, actions[:turns])
        forks = [await self.await_call("fork", self.env.fork()) for _ in range(3)]
        idle, gold, late = forks
        try:
            await self.play_on(idle, [say("")] * 2)
            self.expect_same(
                alone[turns:],
                await self.play_on(gold, actions[turns:]),
                "forks go on like the original",
                where,
            )
            await self.await_call("close", idle.close())
            self.expect_same(
                alone[turns:],
                await self.play_on(self.env, actions[turns:]),
                "forks do not interfere",
                f"{where}, the original after its forks",
            )
            await self.close()
            self.expect_same(
                alone[turns:],
                await self.play_on(late, actions[turns:]),
                "forks do not interfere",
                f"{where}, a fork after its original was closed",
            )
        finally:
            for fork in forks:
                await self.await_call("close", fork.close())

    async def check_cancelled(self, task: Task) -> None:
        await self.reset(task)
        started = asyncio.ensure_future(self.env.step(say("")))
        await asyncio.sleep(0)
        started.cancel()
        await asyncio.wait([started], timeout=self.timeout_s)
        self.expect(started.done(), "a step can be cancelled", "it went on after its cancellation")
        await self.close()

    async def check_close(self, task: Task) -> None:
        await self.close()
        await self.close()
        self.note("close can be repeated")
        await self.expect_refusal("a step after close raises", task)
        await self.reset(task)
        self.note("reset after close works")
        await self.close()

    async def play(self, task: Task, actions: list[Action]) -> list[Step]:
        await self.reset(task)
        return await self.play_on(self.env, actions)

    async def play_on(self, env: Env, actions: list[Action]) -> list[Step]:
        steps: list[Step] = []
        for action in actions:
            steps.append(await self.step(action, env))
            if steps[-1][2] or steps[-1][3]:
                break
        return steps

    async def reset(self, task: Task) -> Observation:
        options = {"task": task.copy()}
        returned = await self.await_call("reset", self.env.reset(seed=3, options=options))
        with _broken_promises():
            opening, _ = check_opening(self.env, returned)
        self.note(RESET_RETURNS, RESET_OPENS)
        return opening

    async def step(self, action: Action, env: Env | None = None) -> Step:
        env = env or self.env
        returned = await self.await_call(f"step({action})", env.step(action))
        with _broken_promises():
            step = check_step(env, returned)
        self.note(STEP_RETURNS, REWARDS_ARE_FINITE)
        self.expect(
            all(message.role != "assistant" for message in step[0].messages),
            "the environment does not speak for the agent",
            f"a reply was {step[0].messages!r}",
        )
        return step

    async def close(self) -> None:
        await self.await_call("close", self.env.close())

    async def await_call(self, what: str, work: Awaitable[T]) -> T:
        deadline = asyncio.timeout(self.timeout_s)
        try:
            with blame(EnvError, what):
                async with deadline:
                    return await work
        except ContractError as error:
            raise CheckError(str(error)) from error
        except EnvError as error:
            if deadline.expired():
                raise CheckError(
                    f"calls end in time: {what} took more than {self.timeout_s:g} s; bound what "
                    "it waits for, or give check_env a larger timeout_s"
                ) from error
            raise CheckError(f"calls do not raise: {error}") from error

    def expect_same(self, first: list[Step], second: list[Step], promise: str, where: str) -> None:
        for turn, (one, other) in enumerate(zip(first, second, strict=False)):
            self.expect(
                one[:4] == other[:4],
                promise,
                f"{where}: turn {turn} was {one[:4]!r} and then {other[:4]!r}",
            )
        self.expect(
            len(first) == len(second),
            promise,
            f"{where}: it took {len(first)} turns and then {len(second)}",
        )


_PROBES = {
    "an answer in words": say("hm"),
    "a call of a tool that is not there": call("no_such_tool", argument=1),
    "a call that could not be parsed": Action("", malformed=("the call is not valid JSON",)),
}


@contextmanager
def _broken_promises() -> Generator[None]:
    """Raise a wrong return as a broken promise, in the same words."""
    try:
        yield
    except ContractError as error:
        raise CheckError(str(error)) from error


def _describe_missing_members(env: object) -> str:
    members = ("fork_strategy", "tasks", "reset", "step", "fork", "close")
    missing = [name for name in members if not hasattr(env, name)]
    return f"{type(env).__name__} has no {', '.join(missing)}"
