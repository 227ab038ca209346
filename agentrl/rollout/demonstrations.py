"""Demonstrations for a policy: conversations of an environment's own gold player."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from random import Random

from agentrl.authoring.env_contract import close_env, reset_env
from agentrl.authoring.gold import GoldEpisode, play_gold
from agentrl.env import Env, Observation, say
from agentrl.errors import EnvError, RolloutError, ToolFailure, blame, first_error
from agentrl.runtime.seeds import derive
from agentrl.task import Task

ATTEMPTS = 3
"""Attempts at an episode whose environment breaks; a wrong player breaks it each time."""
Play = Callable[[Env, Task], Awaitable[GoldEpisode]]


@dataclass(frozen=True, slots=True)
class PlannedDemonstration:
    """One conversation to make."""

    task: Task
    guess: str | None = None
    """Text that is said at once; None has the gold player play."""


def plan_demonstrations(
    tasks: Sequence[Task], *, guess_fraction: float, seed: int, every_task: bool = False
) -> list[PlannedDemonstration]:
    """Return who plays each task: the gold player, or a guess.

    A guess is the most frequent answer of all, said at once: a player that knows what an answer
    looks like and does not use its tools. A `guess_fraction` of the tasks, chosen by `seed`, is
    guessed. With `every_task` the gold player plays each, and guesses come on top of them, up to
    that fraction of the whole: of a few tasks none is left without its solution.
    """
    usual = Counter(str(task.answer) for task in tasks).most_common(1)
    if every_task and guess_fraction < 1:
        added = round(len(tasks) * guess_fraction / (1 - guess_fraction))
        guessed = islice(cycle(tasks), added)
        return [
            *map(PlannedDemonstration, tasks),
            *(PlannedDemonstration(task, usual[0][0]) for task in guessed),
        ]
    random = Random(derive(seed, "guesses"))
    guesses = [usual[0][0] if random.random() < guess_fraction else None for _ in tasks]
    return list(map(PlannedDemonstration, tasks, guesses))


async def demonstrate(
    make_env: Callable[[], Env],
    planned: Sequence[PlannedDemonstration],
    *,
    concurrency: int,
    on_episode: Callable[[], None] = lambda: None,
    wants_places: bool = False,
    max_turns: int | None = 16,
) -> list[GoldEpisode]:
    """Return one conversation per planned demonstration, in their order.

    An episode that breaks is played again; raises `RolloutError` for one that breaks every time.
    """
    free = asyncio.Semaphore(concurrency)

    play_it = partial(play_gold, wants_places=wants_places, max_turns=max_turns)

    async def play_one(task: Task, guess: str | None) -> GoldEpisode:
        async with free:
            episode = await _play_with_retries(make_env, task, guess, play_it)
        on_episode()
        return episode

    with first_error():
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(play_one(one.task, one.guess)) for one in planned]
    return [task.result() for task in running]


async def _play_with_retries(
    make_env: Callable[[], Env], task: Task, guess: str | None, play_it: Play
) -> GoldEpisode:
    for _ in range(ATTEMPTS - 1):
        with suppress(RolloutError):
            return await _play_once(make_env(), task, guess, play_it)
    try:
        return await _play_once(make_env(), task, guess, play_it)
    except ToolFailure as error:  # it does not say of which task
        raise ToolFailure(
            f"the demonstration of task {task.id!r} failed {ATTEMPTS} times, at last with: {error}"
        ) from error


async def _play_once(env: Env, task: Task, guess: str | None, play_it: Play) -> GoldEpisode:
    try:
        with blame(EnvError, f"the demonstration of task {task.id!r}"):
            if guess is None:
                return await play_it(env, task)
            opening = await reset_env(env, task, seed=task.seed, options={}, reset_s=None)
            return _guess_answer(task, opening, guess)
    finally:
        await close_env(env, f"close of the demonstration of task {task.id!r}")


def _guess_answer(task: Task, opening: Observation, guess: str) -> GoldEpisode:
    return GoldEpisode(
        task=task,
        opening=opening,
        actions=(say(guess),),
        replies=(Observation(()),),
        reward=0.0,
    )
