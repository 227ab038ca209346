"""Demonstrations, and worlds that break while they are made.

Mutants seen caught: no second attempt; one attempt more; the world of a broken attempt left open;
guesses among a few tasks in place of their solutions, or as many as tasks whatever the fraction.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from agentrl.env import Action, BaseEnv, Info, Observation, Step, say
from agentrl.errors import EnvError
from agentrl.message import Message
from agentrl.rollout.demonstrations import ATTEMPTS, demonstrate, plan_demonstrations
from agentrl.task import Split, Task

TASKS = [Task(prompt=f"say {n}", answer=str(n)) for n in range(6)]


class Brittle(BaseEnv):
    """Breaks the first `breaks` times that the third task is opened."""

    def __init__(self, opened: list[str], *, breaks: int) -> None:
        self.opened = opened
        self.breaks = breaks
        self.is_open = False

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        del split, seed
        return TASKS

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        del seed
        self.is_open = True
        task: Task = (options or {})["task"]
        self.opened.append(task.id)
        if task.id == TASKS[2].id and self.opened.count(task.id) <= self.breaks:
            raise OSError("the page is gone")
        return Observation(task.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        del action
        return Observation(()), 1.0, True, False, {}

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        del seen
        return say(str(task.answer))

    async def close(self) -> None:
        self.is_open = False


async def shown(breaks: int, *, guess_fraction: float = 0.0) -> tuple[list[str], list[Brittle]]:
    opened: list[str] = []
    made: list[Brittle] = []

    def make() -> Brittle:
        made.append(Brittle(opened, breaks=breaks))
        return made[-1]

    planned = plan_demonstrations(TASKS, guess_fraction=guess_fraction, seed=0)
    episodes = await demonstrate(make, planned, concurrency=2)
    assert [episode.task for episode in episodes] == TASKS
    assert not any(env.is_open for env in made)
    return opened, made


@pytest.mark.parametrize("guess_fraction", [0.0, 1.0])
async def test_an_episode_whose_world_breaks_is_played_again(guess_fraction: float) -> None:
    opened, made = await shown(ATTEMPTS - 1, guess_fraction=guess_fraction)
    assert opened.count(TASKS[2].id) == ATTEMPTS
    assert len(made) == len(TASKS) + ATTEMPTS - 1


async def test_one_that_breaks_every_time_says_which_and_why() -> None:
    with pytest.raises(EnvError, match=f"{TASKS[2].id}.*the page is gone") as raised:
        await shown(ATTEMPTS)
    assert isinstance(raised.value.__cause__, OSError)


async def test_a_close_that_hangs_costs_no_demonstration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrl.authoring.env_contract.CLOSE_S", 0.01)

    class Hangs(Brittle):
        async def close(self) -> None:
            await asyncio.Event().wait()

    episodes = await demonstrate(
        lambda: Hangs([], breaks=0),
        plan_demonstrations(TASKS, guess_fraction=0.5, seed=0),
        concurrency=2,
    )
    assert [episode.task for episode in episodes] == TASKS
    (record,) = caplog.records
    assert "took more than 0.01 s and was cancelled" in record.getMessage()


@pytest.mark.parametrize(("fraction", "guessed"), [(0.0, 0), (0.25, 2), (0.5, 6), (0.75, 18)])
def test_guesses_come_on_top_of_a_few_tasks(fraction: float, guessed: int) -> None:
    planned = plan_demonstrations(TASKS, guess_fraction=fraction, seed=3, every_task=True)
    assert [one.task for one in planned if one.guess is None] == TASKS
    guesses = [one for one in planned if one.guess is not None]
    assert len(guesses) == guessed
    assert {one.guess for one in guesses} <= {"0"}
    assert [one.task for one in guesses[:6]] == TASKS[:guessed]


def test_guesses_are_a_fraction_of_many_tasks() -> None:
    planned = plan_demonstrations(TASKS * 100, guess_fraction=0.25, seed=3)
    assert [one.task for one in planned] == TASKS * 100
    assert 120 < sum(one.guess is not None for one in planned) < 180
