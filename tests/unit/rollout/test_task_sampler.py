"""Which tasks come next.

Mutants seen caught: epochs not reshuffled; `skip` counts one less; overlap compared by id; a mark
without its digest.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import BaseEnv, Env
from agentrl.errors import ConfigError
from agentrl.rollout.task_sampler import TaskSampler, heldout_tasks
from agentrl.task import Split, Task, split_of


class Numbers(BaseEnv):
    """An environment that is only ever asked for its tasks."""

    def __init__(self, train: int | None, heldout: int = 3) -> None:
        self._sizes = {"train": train, "heldout": heldout}

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        size = self._sizes[split]
        for i in count() if size is None else range(size):
            name = f"{split}-{i}"
            yield Task(prompt=f"{split} {i}", answer=str(i), seed=seed, split=split, id=name)

    async def reset(self, **_: object) -> object:
        raise AssertionError("a sampler never resets")

    step = reset


def numbers(train: int | None, heldout: int = 3) -> Env:
    return Numbers(train, heldout)  # pyright: ignore[reportReturnType]


def test_a_finite_stream_is_shuffled_again_every_epoch() -> None:
    sampler = TaskSampler(numbers(20), seed=1)
    epochs = [[task.id for task in sampler.take(20)] for _ in range(3)]
    assert len({frozenset(epoch) for epoch in epochs}) == 1
    assert epochs[1] != epochs[0]
    assert epochs[2] != epochs[1]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 15))
def test_skipping_comes_to_the_same_place_as_taking(done: int, more: int, size: int) -> None:
    whole, resumed = TaskSampler(numbers(size), seed=3), TaskSampler(numbers(size), seed=3)
    whole.take(done)
    resumed.skip(whole.position)
    assert [t.id for t in resumed.take(more)] == [t.id for t in whole.take(more)]
    assert resumed.position == whole.position == done + more


@pytest.mark.parametrize("size", [3, 20])
def test_a_mark_knows_the_tasks_again(size: int) -> None:
    sampler = TaskSampler(numbers(size), seed=1)
    sampler.take(8)
    same, fewer = TaskSampler(numbers(size), seed=1), TaskSampler(numbers(2), seed=1)
    for other in (same, fewer):
        other.skip(8)
    same.check(sampler.mark)
    same.check({"position": 8})  # of an older checkpoint
    with pytest.raises(ConfigError, match=r"first 8 train tasks .*has changed; restore it"):
        fewer.check(sampler.mark)


def test_an_endless_stream_never_repeats() -> None:
    tasks = TaskSampler(numbers(None), seed=0).take(500)
    assert len({task.id for task in tasks}) == 500


def test_a_limit_makes_an_endless_stream_finite() -> None:
    assert len({t.id for t in TaskSampler(numbers(None), seed=0, limit=5).take(50)}) == 5


def test_a_train_task_that_is_held_out_is_refused_by_content() -> None:
    env = numbers(5)
    leaked = replace(next(iter(env.tasks("train"))), id="another name", split="heldout")
    with pytest.raises(ConfigError, match=r"held-out task another name.*split_guard\.allow"):
        TaskSampler(env, seed=0, heldout=[leaked]).take(1)
    assert TaskSampler(env, seed=0, heldout=[leaked], allow_overlap=True).take(1)


def test_an_empty_split_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no train task"):
        TaskSampler(numbers(0), seed=0).take(1)
    with pytest.raises(ConfigError, match="no held-out task"):
        heldout_tasks(numbers(1, 0), count=5, seed=0)


def test_fewer_held_out_tasks_than_wanted_are_all_of_them() -> None:
    assert len(heldout_tasks(numbers(1, 3), count=5, seed=0)) == 3


def test_held_out_tasks_are_different_problems() -> None:
    class Repeats(Numbers):
        def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
            for i in count():
                yield Task(prompt=f"{i % 7}", answer="", id=str(i), split=split)

    env: Env = Repeats(None)  # pyright: ignore[reportAssignmentType]
    assert [t.id for t in heldout_tasks(env, count=5, seed=0)] == ["0", "1", "2", "3", "4"]
    assert len(heldout_tasks(env, count=50, seed=0)) == 7


@given(st.text(min_size=1))
def test_a_problem_is_always_in_the_same_split(text: str) -> None:
    assert split_of(text) == split_of(text)
    assert split_of(text, heldout_fraction=0.0) == "train"
    assert split_of(text, heldout_fraction=1.0) == "heldout"


def test_a_tenth_of_the_problems_is_held_out() -> None:
    share = sum(split_of(f"problem {i}") == "heldout" for i in range(4000)) / 4000
    assert 0.08 < share < 0.12
