"""What a policy is shown before it acts: conversations of an environment's own gold player."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from agentrl.env import Env, Observation, say
from agentrl.gold import GoldEpisode, play_gold
from agentrl.seeds import derive
from agentrl.task import Task


async def demonstrate(
    make_env: Callable[[], Env],
    tasks: Sequence[Task],
    *,
    guess_fraction: float,
    seed: int,
    concurrency: int,
    on_episode: Callable[[], None] = lambda: None,
) -> list[GoldEpisode]:
    """Return one conversation per task, in the order of the tasks.

    A `guess_fraction` of them, chosen by `seed`, answers at once with the most frequent answer of
    all: a player that knows what an answer looks like and does not use its tools.
    """
    free = asyncio.Semaphore(concurrency)
    random = Random(derive(seed, "guesses"))
    usual = Counter(str(task.answer) for task in tasks).most_common(1)
    guesses = [usual[0][0] if random.random() < guess_fraction else None for _ in tasks]

    async def one(task: Task, guess: str | None) -> GoldEpisode:
        async with free:
            env = make_env()
            try:
                if guess is None:
                    episode = await play_gold(env, task)
                else:
                    opening, _ = await env.reset(seed=task.seed, options={"task": task})
                    episode = _guessed(task, opening, guess)
            finally:
                await env.close()
        on_episode()
        return episode

    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(one(task, guess)) for task, guess in zip(tasks, guesses, strict=True)
        ]
    return [task.result() for task in running]


def _guessed(task: Task, opening: Observation, guess: str) -> GoldEpisode:
    return GoldEpisode(
        task=task,
        opening=opening,
        actions=(say(guess),),
        replies=(Observation(()),),
        reward=0.0,
    )
