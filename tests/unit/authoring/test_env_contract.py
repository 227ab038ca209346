"""What an environment returns wrongly: one sentence, in `check-env`, in training and in evaluation.

Every class below returns one wrong thing. `check_env` is what `check-env` calls; training plays
gold episodes (`demonstrate`), draws tasks (`TaskSampler`) and plays the policy (`EpisodeRunner`);
an evaluation draws held-out tasks and plays the policy. That nothing stands between that and the
user is seen in whole commands, in tests/run/test_bad_environment.py.

Mutants seen caught: parts of a step not looked at; messages not, or roles or parts of their content
not; an id that may come twice; a task that is not copied, or its data or its answer not;
pictures not looked at, or only those of a step, or not those without the hint.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from agentrl.authoring import env_contract
from agentrl.authoring.env_contract import (
    check_opening,
    check_step,
    close_env,
    read_tasks,
    reset_env,
    step_env,
)
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Env, Observation, Step, say
from agentrl.errors import CheckError, ConfigError, ContractError, EnvError
from agentrl.message import Image, Message
from agentrl.rollout.demonstrations import PlannedDemonstration, demonstrate
from agentrl.rollout.env_wrapper import EnvWrapper
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.scheduler.topology import TooManyFailures, check_scored
from agentrl.rollout.task_sampler import TaskSampler, heldout_tasks
from agentrl.task import Split, Task
from agentrl.testing import ScriptedEnv, ScriptedTurn, check_env
from agentrl.trajectory import Failed, Finished, Tree
from benchmarks.letters import LetterChat
from tests.support.said_turns import saying

HERE = "tests/unit/authoring/test_env_contract.py"
HUGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (50_000).to_bytes(4) * 2
"""The head of a PNG."""
TURNS = (ScriptedTurn(wants="done", reward=1.0),)


class Honest(ScriptedEnv):
    def __init__(self) -> None:
        super().__init__(TURNS)


STEP = "step returns (Observation, float, bool, bool, dict): "
SAID = Observation((Message("user", "hm"),))
STEPS: dict[str, tuple[Any, str]] = {
    "four": ((SAID, 0.0, True, {}), STEP + "it returned a tuple of 4, (Observation, float, bool, "),
    "none": (None, STEP + "it returned a NoneType: None"),
    "words": (("hm", 0.0, True, False, {}), STEP + "observation is a str: 'hm'"),
    "no reward": ((SAID, None, True, False, {}), STEP + "reward is a NoneType: None"),
    "a true reward": ((SAID, True, True, False, {}), STEP + "reward is a bool: True"),
    "a word's reward": ((SAID, "1", True, False, {}), STEP + "reward is a str: '1'"),
    "an array": ((SAID, np.ones(1), True, False, {}), STEP + "reward is a ndarray: array([1.])"),
    "done 1": ((SAID, 0.0, 1, False, {}), STEP + "terminated is a int: 1"),
    "done np": ((SAID, 0.0, np.bool_(0), False, {}), STEP + "terminated is a bool"),
    "cut None": ((SAID, 0.0, True, None, {}), STEP + "truncated is a NoneType: None"),
    "no info": ((SAID, 0.0, True, False, None), STEP + "info is a NoneType: None"),
    "nan": (
        (SAID, float("nan"), True, False, {}),
        "rewards are finite: the reward of a step is nan, but",
    ),
    "huge": ((SAID, 1e308, True, False, {}), "rewards are finite: the reward of a step is 1e+308"),
    "a huge integer": (
        (SAID, -(10**400), True, False, {}),
        "rewards are finite: the reward of a step is an integer of 1329 bits, but a reward may be",
    ),
    "a part that is nan": (
        (SAID, 1.0, True, False, {"reward_components": {"right": 1.0, "style": float("nan")}}),
        "rewards are finite: component 'style' of the reward is nan, but a reward must be a finite",
    ),
    "a part that is a huge integer": (
        (SAID, 1.0, True, False, {"reward_components": {"style": 10**400}}),
        "rewards are finite: component 'style' of the reward is an integer of 1329 bits, but",
    ),
    "a part that is text": (
        (SAID, 1.0, True, False, {"reward_components": {"style": "good"}}),
        STEP + "component 'style' of the reward is a str: 'good'; give a number",
    ),
    "a part without a name": (
        (SAID, 1.0, True, False, {"reward_components": {0: 1.0}}),
        STEP + "component 0 of the reward has a name that is no text",
    ),
    "no parts": (
        (SAID, 1.0, True, False, {"reward_components": [1.0]}),
        STEP + "reward_components is a list: [1.0]; give a mapping of names to numbers",
    ),
    "a string for messages": (
        (Observation("hm"), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "the observation's messages are a str: 'hm'; give a tuple of Message",
    ),
    "strings for messages": (
        (Observation(("hm",)), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "the observation's messages are a tuple of 1, (str): ('hm',)",
    ),
    "a role of its own": (
        (Observation((Message("bot", "hm"),)), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "message 0 of the observation has the role 'bot'; give one of system, user, assist",
    ),
    "a number for a text": (
        (Observation((Message("user", 7),)), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "message 0 of the observation has as content a int: 7; give text, or a tuple of te",
    ),
    "a number among texts": (
        (Observation((Message("user", ("a", 7)),)), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "message 0 of the observation has as content a tuple of 2, (str, int): ('a', 7); g",
    ),
    "a text for a picture": (
        (Observation((Message("user", ("a", Image(b"hello"))),)), 0.0, True, False, {}),
        STEP + "message 0 of the observation has a picture that no policy may see: 5 bytes declar",
    ),
    "too many pixels": (
        (Observation((Message("user", (Image(HUGE),)),)), 0.0, True, False, {}),
        STEP + "message 0 of the observation has a picture that no policy may see: 24 bytes decla",
    ),
    "a tool's name for tools": (
        (Observation((), tools=("look",)), 0.0, True, False, {}),  # pyright: ignore[reportArgumentType]
        STEP + "the observation's tools are a tuple of 1, (str): ('look',); give a tuple of sche",
    ),
}
RESET = "reset returns (Observation, dict): "
RESETS: dict[str, tuple[Any, str]] = {
    "a text for a picture without the hint": (
        (Observation((Message("user", "a"),), (), unhinted=(Message("user", (Image(b"b"),)),)), {}),
        RESET + "message 0 of unhinted has a picture that no policy may see: 1 bytes declared as ",
    ),
    "alone": (SAID, RESET + "it returned a Observation: Observation("),
    "three": ((SAID, {}, 1), RESET + "it returned a tuple of 3, (Observation, dict, int)"),
    "words": (("hm", {}), RESET + "the observation is a str: 'hm'"),
    "no info": ((SAID, None), RESET + "the info is a NoneType: None"),
    "no tools": ((SAID, {}), "reset opens with messages and tools: there are 1 messages and tool"),
    "nothing": (
        (Observation((), tools=()), {}),
        "reset opens with messages and tools: there are 0 messages and tools=()",
    ),
}


def stepping(returned: Any) -> Env:
    class WrongStep(Honest):
        async def step(self, action: Action) -> Step:
            await super().step(action)
            return returned

    return WrongStep()


def resetting(returned: Any) -> Env:
    class WrongReset(Honest):
        async def reset(self, **given: Any) -> Any:
            await super().reset(**given)
            return returned

    return WrongReset()


TASK = Task(prompt="x", answer="", split="train")
TASKS: dict[str, tuple[Any, str]] = {
    "none": (None, "tasks yields agentrl.Task: it returned a NoneType: None"),
    "words": (["x"], "tasks yields agentrl.Task: it yielded a str: 'x'; yield agentrl.Task(pro"),
    "of the other split": (
        [Task(prompt="x", answer="", id="t", split="heldout")],
        "tasks know their split: task 't' of split 'train' has split 'heldout'",
    ),
    "not JSON": (
        [Task(prompt="x", answer="", id="t", data={"kept": {1, 2}})],
        "tasks are JSON-serialisable: the answer or data of task 't' is not: Object of type set",
    ),
    "a number that JSON lacks": (
        [Task(prompt="x", answer="", id="t", data={"most": float("inf")})],
        "tasks are JSON-serialisable: the answer or data of task 't' is not: Out of range float",
    ),
    "no text for a tag": (
        [Task(prompt="x", answer="", id="t", tags=("a", None))],  # pyright: ignore[reportArgumentType]
        "ids and tags of tasks are text: tags[1] of task 't' is a NoneType: None; give text",
    ),
    "one text for tags": (
        [Task(prompt="x", answer="", id="t", tags="family")],  # pyright: ignore[reportArgumentType]
        "ids and tags of tasks are text: tags of task 't' is a str: 'family'; give a tuple of tex",
    ),
    "half a character": (
        [Task(prompt="x", answer="", id="t\ud800")],
        "ids and tags of tasks are text: id of task 't\\ud800' contains a lone surr",
    ),
    "a number for an id": (
        [Task(prompt="x", answer="", id=5)],  # pyright: ignore[reportArgumentType]
        "ids and tags of tasks are text: id of task 5 is a int: 5; give text",
    ),
    "empty": ([], "both splits have tasks: the environment yields no train task; check env.kwar"),
}


def yielding(returned: Any) -> Env:
    class WrongTasks(Honest):
        def tasks(self, split: Split, *, seed: int = 0) -> Any:
            return returned if split == "train" else super().tasks(split, seed=seed)

    return WrongTasks()


async def sentence_of_check(env: Env) -> str:
    with pytest.raises(CheckError) as raised:
        await check_env(env, timeout_s=10.0, grace_s=0.2)
    return str(raised.value)


async def sentence_of_gold(env: Env) -> str:
    task = next(iter(Honest().tasks("train")))
    with pytest.raises(ContractError) as raised:
        await demonstrate(lambda: env, [PlannedDemonstration(task)], concurrency=1)
    return str(raised.value)


async def sentence_of_guess(env: Env) -> str:
    task = next(iter(Honest().tasks("train")))
    with pytest.raises(ContractError) as raised:
        await demonstrate(lambda: env, [PlannedDemonstration(task, "5")], concurrency=1)
    return str(raised.value)


async def sentence_of_episode(env: Env) -> str:
    task = next(iter(Honest().tasks("train")))
    episode = EpisodeRunner(
        env=EnvWrapper(EnvWrapper(env)),
        engine=ScriptedEngine(saying("done")),
        chat=LetterChat(),
        tree=Tree(task),
        sample=0,
        seed=1,
    )
    outcome = (await asyncio.wait_for(episode.run(), 60)).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "env"
    return outcome.error


@pytest.mark.parametrize("name", STEPS)
async def test_a_wrong_step_is_one_sentence_everywhere(name: str) -> None:
    returned, words = STEPS[name]
    said = await sentence_of_episode(stepping(returned))
    assert said.startswith(words)
    assert re.search(rf"; at {HERE}:\d+, in step$", said)
    assert await sentence_of_check(stepping(returned)) == said
    assert await sentence_of_gold(stepping(returned)) == said


@pytest.mark.parametrize("name", RESETS)
async def test_a_wrong_reset_is_one_sentence_everywhere(name: str) -> None:
    returned, words = RESETS[name]
    said = await sentence_of_episode(resetting(returned))
    assert said.startswith(words)
    assert re.search(rf"; at {HERE}:\d+, in reset$", said)
    assert await sentence_of_check(resetting(returned)) == said
    assert await sentence_of_gold(resetting(returned)) == said
    assert await sentence_of_guess(resetting(returned)) == said


@pytest.mark.parametrize("name", TASKS)
async def test_wrong_tasks_are_one_sentence_everywhere(name: str) -> None:
    returned, words = TASKS[name]
    with pytest.raises((ContractError, ConfigError)) as raised:
        TaskSampler(yielding(returned), seed=0).take(1)
    said = str(raised.value)
    assert said.startswith(words)
    assert re.search(rf"; at {HERE}:\d+, in tasks$", said)
    assert await sentence_of_check(yielding(returned)) == said


async def test_what_an_episode_changes_in_its_task_is_its_own() -> None:
    class Remembers(Honest):
        async def reset(self, **given: Any) -> Any:
            task: Task = given["options"]["task"]
            seen.append([*task.data["seen"], *task.answer])
            task.data["seen"].append(1)
            task.answer.append(1)
            return await super().reset(**given)

    seen: list[list[int]] = []
    task = Task(prompt="x", answer=[], data={"seen": []})
    for _ in range(2):
        await reset_env(Remembers(), task, seed=0, options={}, reset_s=None)
    assert seen == [[], []]
    assert (task.data, task.answer) == ({"seen": []}, [])
    assert task.copy() == task


async def test_two_problems_of_one_id_are_told() -> None:
    """Their scores would be one problem's, as if it had been played twice as often."""
    env = yielding([Task(prompt="x", answer=answer, id="t") for answer in "12"])
    with pytest.raises(ContractError) as raised:
        TaskSampler(env, seed=0).take(2)
    said = str(raised.value)
    assert said.startswith("ids are unique: two different problems are called 't'; give each an id")
    assert await sentence_of_check(env) == said


def test_the_same_problem_may_come_twice() -> None:
    assert len(list(read_tasks(yielding([TASK, TASK]), "train", seed=0))) == 2


def test_wrong_held_out_tasks_are_told_too() -> None:
    class NoHeldOut(Honest):
        def tasks(self, split: Split, *, seed: int = 0) -> Any:
            return []

    with pytest.raises(ConfigError, match=r"^both splits have .* no held-out task.*in tasks"):
        heldout_tasks(NoHeldOut(), count=1, seed=0)


def test_what_tasks_raises_names_its_line() -> None:
    class Raises(Honest):
        def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
            yield TASK
            raise KeyError("db")

    with pytest.raises(EnvError, match=r"^tasks\('train', seed=3\): KeyError: 'db'$"):
        list(read_tasks(Raises(), "train", seed=3))


def test_what_keeps_the_contract_passes_as_it_is() -> None:
    env = Honest()
    for reward in (1, 0.5, np.float64(2.0)):
        step: Any = (SAID, reward, False, True, {})
        assert check_step(env, step) is step
    listed: Any = Observation([Message("user", "x")], tools=[{}])  # pyright: ignore[reportArgumentType]
    assert check_opening(env, (listed, {})) == (listed, {})


# -- evaluations and commands ---------------------------------------------------------------------


def test_an_evaluation_without_one_reward_stops() -> None:
    check_scored([])
    check_scored([Failed("env", "x"), Finished(0.0)])
    failed = [
        *[Failed("env", "KeyError: 'db'; at bad_env.py:12, in step")] * 2,
        Failed("tool", "y"),
    ]
    with pytest.raises(
        TooManyFailures,
        match=r"^all 3 trajectories of the evaluation failed \(2 x env, mostly: KeyError: 'db'; at "
        r"bad_env.py:12, in step; 1 x tool, mostly: y\), so there is nothing to score",
    ):
        check_scored(failed)


@pytest.mark.parametrize("method", ["reset", "step", "close"])
async def test_what_goes_on_after_its_cancellation_is_named(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mutants seen caught: told of a method that ends when it is cancelled; never told."""
    monkeypatch.setattr(env_contract, "STUBBORN_S", 0.05)
    monkeypatch.setattr(env_contract, "CLOSE_S", 0.01)
    hangs, swallows = True, False

    async def hang() -> None:
        if hangs:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not swallows:
                    raise
                await asyncio.sleep(0.2)

    class Slow(Honest):
        async def reset(self, **given: Any) -> Any:
            if method == "reset":
                await hang()
            return await super().reset(**given)

        async def step(self, action: Action) -> Step:
            if method == "step":
                await hang()
            return await super().step(action)

        async def close(self) -> None:
            if method == "close":
                await hang()

    task = next(iter(Honest().tasks("train")))
    for swallows in (False, True):
        env = Slow()
        with suppress(EnvError):
            await reset_env(env, task, seed=0, options={}, reset_s=0.01)
            await step_env(env, task, say("5"), step_s=0.01)
        await close_env(env, "close")
        told = [one.getMessage() for one in caplog.records if "goes on" in one.getMessage()]
        assert len(told) == swallows
    assert re.match(rf"the environment's {method} \(at {HERE}:\d+, in {method}\) goes on", told[0])
