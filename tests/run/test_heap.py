"""What was there when a run began to play is not gone through by the garbage collector.

Mutants seen caught: the heap of a run left as it is; garbage frozen with the rest; an inner block
that ends the outer one; what somebody else froze let go.
"""

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from agentrl.authoring.tool_env import ToolEnv
from agentrl.message import Message
from agentrl.run import evaluate
from agentrl.run.train import train
from agentrl.runtime.heap import frozen_heap
from agentrl.task import Split, Task
from tests.support.doubles import double, doubles, gold
from tests.support.tiny_run import CONFIG

MANY = 10_000
frozen: list[int] = []


@pytest.fixture(autouse=True)
def collected_heap() -> Iterator[None]:
    """Begin as a process does that has not called `gc.freeze`; see conftest.py."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


class Thing:
    """Something that can be looked for."""

    me: "Thing"


def a_cycle() -> "weakref.ref[Thing]":
    thing = Thing()
    thing.me = thing
    return weakref.ref(thing)


def counted(task: Task, messages: Sequence[Message]) -> float:
    frozen.append(gc.get_freeze_count())
    return len(messages[-1].text) % 8 / 7


class Counting(ToolEnv):
    def __init__(self) -> None:
        def tasks(split: Split, seed: int) -> Iterable[Task]:
            return doubles(split, seed)

        super().__init__(tasks=tasks, tools=[double], reward=counted, gold=gold)


def test_only_what_is_new_is_gone_through() -> None:
    before, garbage = Thing(), a_cycle()
    gc.disable()
    try:
        with frozen_heap():
            assert garbage() is None, "nothing of it is kept"
            with frozen_heap():
                new = Thing()
            tracked = gc.get_objects()
            assert any(one is new for one in tracked)
            assert not any(one is before for one in tracked)
            made = a_cycle()
            gc.collect()
            assert made() is None
        assert gc.get_freeze_count() == 0
        assert any(one is before for one in gc.get_objects())
    finally:
        gc.enable()


def test_a_process_that_froze_its_heap_keeps_it_frozen() -> None:
    before = Thing()
    gc.freeze()
    after = Thing()
    with frozen_heap():
        assert any(one is after for one in gc.get_objects())
    assert not any(one is before for one in gc.get_objects())
    assert gc.get_freeze_count() > 0


def test_a_run_and_an_evaluation_play_with_a_frozen_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    config = tmp_path / "tiny.yaml"
    config.write_text(
        CONFIG.format(folder=tmp_path / "runs").replace(
            "tests.support.tiny_run:Doubles", f"{__name__}:Counting"
        )
    )
    frozen.clear()
    train(config, {"run.steps": 1})
    assert frozen[-1] > MANY, "the warm start may play before"
    for player in (None, "gold"):
        frozen.clear()
        evaluate.evaluate(config, {"run.steps": 1}, player=player)
        assert frozen
        assert min(frozen) > MANY
    assert gc.get_freeze_count() == 0
