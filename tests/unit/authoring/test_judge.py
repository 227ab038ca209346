"""A judge of right answers that came of a wrong step.

Mutants seen caught: wrong answers judged; verdicts that name no turn believed; a judge that sees
ahead; a flawed solution called sound rewarded by distance; what a reward told beside it lost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl import Message, Task, say
from agentrl.authoring.step_judge import (
    FIRST_ERROR_TURN,
    SOUND,
    first_wrong,
    judge_reward,
    judge_steps,
)
from agentrl.authoring.tool_env import Judged, ScoredAnswer, ToolEnv
from agentrl.config.learning.shaping import FapoShaping

TASK = Task(prompt="2 + 2?", answer="4", id="t")
TALK = (
    Message("system", "s"),
    Message("user", "2 + 2?"),
    Message("assistant", "so 5"),
    Message("tool", "?"),
    Message("assistant", "4"),
)


def right(task: Task, messages: Sequence[Message]) -> float:
    return float(messages[-1].text == task.answer)


def info_of(scored: ScoredAnswer) -> Mapping[str, float]:
    return scored.info["reward_components"]


async def test_what_is_right_is_judged_and_its_reward_stays() -> None:
    judge = first_wrong(lambda task, seen: "5" not in seen[-1].text)
    found = await judge_steps(right, judge)(TASK, TALK)
    assert found.reward == 1.0
    assert info_of(found) == {FIRST_ERROR_TURN: 0.0}
    sound = await judge_steps(right, judge)(TASK, TALK[-1:])
    assert info_of(sound) == {FIRST_ERROR_TURN: -1.0}


async def test_what_is_wrong_is_not_judged() -> None:
    def never(task: Task, messages: Sequence[Message]) -> int:
        raise AssertionError

    found = await judge_steps(right, never)(TASK, TALK[:3])
    assert (found.reward, info_of(found)) == (0.0, {})
    assert info_of(await judge_steps(right, never, right_above=1.0)(TASK, TALK)) == {}


@pytest.mark.parametrize("verdict", [None, -2, 2, 99])
async def test_a_verdict_that_names_no_turn_is_none(verdict: int | None) -> None:
    found = await judge_steps(right, lambda task, messages: verdict)(TASK, TALK)
    assert info_of(found) == {}


async def test_both_functions_may_be_coroutines_and_return_parts() -> None:
    async def reward(task: Task, messages: Sequence[Message]) -> Judged:
        await asyncio.sleep(0)
        return {"answer": 0.75, "style": 0.25}

    async def judge(task: Task, messages: Sequence[Message]) -> int:
        await asyncio.sleep(0)
        return 1

    found = await judge_steps(reward, judge)(TASK, TALK)
    assert found.reward == 1.0
    assert info_of(found) == {"answer": 0.75, "style": 0.25, FIRST_ERROR_TURN: 1.0}


async def test_what_a_reward_told_beside_it_is_kept() -> None:
    told = {"reward_components": {"speed": 3.0}, "seen": 5}
    found = await judge_steps(lambda t, m: ScoredAnswer(reward=1, info=told), lambda t, m: SOUND)(
        TASK, TALK
    )
    assert found.info["seen"] == 5
    assert info_of(found) == {"speed": 3.0, FIRST_ERROR_TURN: -1.0}
    assert told["reward_components"] == {"speed": 3.0}


async def test_a_judge_that_breaks_fails_the_trajectory() -> None:
    def broken(task: Task, messages: Sequence[Message]) -> int:
        raise OSError("no judge")

    with pytest.raises(OSError, match="no judge"):
        await judge_steps(right, broken)(TASK, TALK)


async def test_a_tool_environment_reports_it() -> None:
    judge = first_wrong(lambda task, seen: False)
    env = ToolEnv(tasks=lambda split, seed: [TASK], reward=judge_steps(right, judge))
    await env.reset(options={"task": TASK})
    _, reward, terminated, _, info = await env.step(say("4"))
    assert (reward, terminated) == (1.0, True)
    assert info["reward_components"] == {FIRST_ERROR_TURN: 0.0}


def test_a_scripted_judge_sees_all_up_to_the_turn_and_no_more() -> None:
    seen: list[int] = []

    def look(task: Task, messages: Sequence[Message]) -> bool:
        seen.append(len(messages))
        return True

    assert first_wrong(look)(TASK, TALK) == SOUND
    assert seen == [3, 5]


@pytest.mark.parametrize(
    ("said", "truth", "expected"),
    [
        (6, 4, 0.8),
        (-1, 4, -1.0),
        (4, 4, 1.0),
        (0, 4, 0.6),
        (-1, -1, 1.0),
        (3, -1, -1.0),
        (None, -1, -1.0),
        (None, 4, -1.0),
        (10, 4, -1.0),
        (-2, -1, -1.0),
        (9, 0, 0.1),
    ],
)
def test_the_judges_rewards_of_the_specification(
    said: int | None, truth: int, expected: float
) -> None:
    assert judge_reward(said, truth=truth, steps=10) == pytest.approx(expected)


@given(st.integers(1, 9), st.data())
def test_a_judge_earns_most_by_the_truth(steps: int, data: st.DataObject) -> None:
    truth = data.draw(st.integers(-1, steps - 1))
    said = data.draw(st.none() | st.integers(-3, steps + 3))
    found: Any = judge_reward(said, truth=truth, steps=steps)
    assert -1 <= found <= 1
    assert (found == 1) == (said == truth)


def test_the_shaping_reads_what_the_judge_writes() -> None:
    assert FapoShaping().component == FIRST_ERROR_TURN
