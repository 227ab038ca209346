"""Answers that count, and rewards as a config names them.

Mutants seen caught: a thought counts; a comma cut out of a
text that is no number; the weights left out; a reward that gives None paid as 0; a part of
TRL's that is handed the assistant's turns as its prompt; a minus sign taken for a mark before the
score.
"""

import functools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.authoring.toolset import ToolSet
from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message, ToolCall
from agentrl.task import Task
from agentrl_envs.dataset.final_answers import (
    exact_answer,
    exact_reward,
    final_answer,
    find_reference_fault,
    normalise,
    reference_answers,
)
from agentrl_envs.dataset.llm_judge import JudgeReward, JudgeSettings, parse_score
from agentrl_envs.dataset.reward_sum import build_rewards, compares_answers
from agentrl_envs.dataset.trl_reward import TrlReward, split_conversation

SUPPORT = "tests.support.counter_factory"
HERE = "tests.unit.envs.dataset.test_rewards"


def said(*texts: str) -> tuple[Message, ...]:
    return (Message("user", "Q"), *(Message("assistant", text) for text in texts))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>#### 1</think> 2 ", "2"),
        ("a <answer> 1 </answer> b <answer>2</answer> \\boxed{3}", "2"),
        ("\\boxed{1} so \\boxed{\\frac{1}{2}} #### 3", "\\frac{1}{2}"),
        ("#### 1\n#### 2", "2"),
        ("Answer: 1. The answer : 2", "2"),
        ("my answers are 2", "my answers are 2"),
    ],
)
def test_one_answer_counts(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1,000 ", Decimal(1000)),
        ("$1000.0.", Decimal(1000)),
        ("\N{MINUS SIGN}.5", Decimal("-0.5")),
        ("\u202a42\u202c", Decimal(42)),
        ("\ufeffthe\u200b cat\u2069", "the cat"),
        (".5", Decimal("0.5")),
        ("**42**.", Decimal(42)),
        ("1,00", "1,00"),
        ("A,  b\nC.", "a, b c"),
        ("\N{FULLWIDTH DIGIT ONE}", Decimal(1)),
        ("", ""),
        ("-", "-"),
        (".", ""),
        ("²", Decimal(2)),
        ("1e-05", Decimal("0.00001")),
        ("-2.5E3", Decimal(-2500)),
        ("e5", "e5"),
        ("1e99999", "1e99999"),
    ],
)
def test_what_is_compared(text: str, value: object) -> None:
    assert normalise(text) == value
    assert type(normalise(text)) is type(value)


@given(st.text(max_size=30))
def test_normalising_is_done_at_once(text: str) -> None:
    once = normalise(text)
    assert normalise(str(once)) == once


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_its_value(number: int) -> None:
    for text in (str(number), f"{number:,}", f"{number}.0", f" ${number}. "):
        assert normalise(text) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_its_value_however_it_is_written(number: float) -> None:
    assert normalise(str(number)) == normalise(f"{Decimal(str(number)):f}")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "None, which is neither text nor number"),
        ([], "None, which is neither"),
        (["a", None], "None, which is neither"),
        ([["b"]], "which is neither"),
        ({"a": 1}, "which is neither"),
        ("", "is empty"),
        ("so it is\n#### ", "marks an empty answer"),
        ("<answer> </answer>", "marks an empty answer"),
        ("<answer>5</answer>", ""),
        (0, ""),
        (["a", 2], ""),
    ],
)
def test_a_reference_that_nothing_equals_is_told(answer: object, words: str) -> None:
    fault = find_reference_fault(answer)
    assert words in fault
    assert bool(words) == bool(fault)


def test_references_are_what_a_solution_ends_with() -> None:
    assert reference_answers("<answer>5</answer>") == ("5",)
    assert reference_answers("2 + 2 = 4\n#### 4") == ("4",)
    assert reference_answers(["a", 4]) == ("a", "4")
    task = Task(prompt="Q", answer=["four", 4])
    assert [exact_reward(task, said(text)) for text in ("FOUR", "4.0", "5", "")] == [1, 1, 0, 0]
    assert exact_reward(Task(prompt="Q", answer="x"), said("x", "y")) == 0.0


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("25", "2\u2075", 0.0),
        ("2^5", "2\u2075", 1.0),
        ("10\u00b3", "103", 0.0),
        ("5 m2", "5 m\u00b2", 1.0),
    ],
)
def test_powers_of_numbers_are_no_digits(answer: str, reference: str, score: float) -> None:
    assert exact_reward(Task(prompt="Q", answer=reference), said(answer)) == score


def half(task: Task, messages: Sequence[Message]) -> float:
    return 0.5


def parted(task: Task, messages: Sequence[Message]) -> dict[str, float]:
    return {"a": 0.25, "b": 0.5}


def with_tools(task: Task, messages: Sequence[Message], tools: ToolSet) -> float:
    return 2.0


def one_parameter(task: Task) -> float:
    return 0.0


async def test_rewards_are_weighted_and_named() -> None:
    rewards = build_rewards(
        ["exact", {"name": f"{HERE}:half", "weight": 0.5}, {"name": f"{HERE}:parted", "weight": -2}]
    )
    scored = await rewards.score(Task(prompt="Q", answer="4"), said("4"))
    assert scored.reward == {"exact": 1.0, "half": 0.25, "parted": -1.5}
    rewards = build_rewards([half, {"name": f"{HERE}:with_tools", "label": "state"}])
    assert rewards.sees_tools
    tools: Any = object()
    scored = await rewards.score_with_tools(Task(prompt="Q"), said("4"), tools)
    assert scored.reward == {"half": 0.5, "state": 2.0}
    assert not build_rewards("exact").sees_tools
    assert compares_answers([half, {"name": "exact"}])
    assert not compares_answers(f"{HERE}:half")


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (None, "reward is null; name exact, math"),
        ([], "reward is an empty list; name exact, math, judge, module:function or trl:"),
        ("exct", "reward 'exct' is none; name exact, math"),
        ({"weight": 1}, r"a reward is given as \{'weight': 1\}, without its name; add `name`"),
        (
            {"name": "exact", "weight": "1"},
            "the weight of reward 'exact' is '1'; it must be a",
        ),
        (
            {"name": "exact", "wieght": 1},
            r"has the unknown key 'wieght'; did you mean weight\? its",
        ),
        (["exact", {"name": "exact"}], "two rewards are called 'exact'; give each a `label`"),
        (f"{HERE}:one_parameter", r"takes \(task.*it must take a task and the messages"),
        (f"{HERE}:nothing", "has no 'nothing'"),
        (
            {"name": "judge", "url": "x"},
            "a reward judge lacks prompt, model; its keys are pro",
        ),
        (
            {"name": "judge", "prompt": "p", "url": "u", "model": "m", "modle": 1},
            "has the unknown key 'modle'",
        ),
        (
            {"name": "judge", "prompt": "p", "url": "u", "model": "m", "scale": 3},
            r"scale of a judge is 3; it must be two numbers, .* as \[0, 10\]",
        ),
        (
            f"trl:{SUPPORT}:reward_tokens",
            "takes 'completion_ids', which only a trainer has",
        ),
    ],
)
def test_a_reward_that_is_none_says_why(reward: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_rewards(reward)


# -- TRL's signature -------------------------------------------------------------------------------


def test_a_conversation_is_split_as_trl_has_it() -> None:
    opening = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    call = ToolCall("x", "look", {"at": 1})
    turns = (
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "door", tool_call_id="x", name="look"),
        Message("assistant", "done"),
    )
    system = Message("system", "s")
    prompt, completion = split_conversation(Task(prompt=opening), (system, *opening, *turns))
    assert prompt == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    function = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    assert completion == [
        {"role": "assistant", "content": "", "tool_calls": [function]},
        {"role": "tool", "name": "look", "content": "door"},
        {"role": "assistant", "content": "done"},
    ]
    texts = split_conversation(Task(prompt="a"), (system, Message("user", "a"), turns[-1]))
    assert texts == ("a", "done")


def by_column(completions: list[str], target: list[int], **kwargs: Any) -> list[float | None]:
    assert not {"prompt", "completion", "environments"} & kwargs.keys()
    assert kwargs["prompts"] == ["Q"]
    kwargs["log_metric"]("seen", 1)
    return [None if text == "pass" else float(text == str(target[0])) for text in completions]


def without_columns(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def return_it(value: object, **columns: object) -> object:
    return value


async def test_columns_are_lists_of_one_and_none_is_left_out() -> None:
    task = Task(prompt="Q", data={"row": {"prompt": "Q", "target": 4, "completion": "x"}})
    rewards = build_rewards(
        [{"name": f"trl:{HERE}:by_column", "weight": 3}, f"trl:{HERE}:without_columns"]
    )
    scored = await rewards.score(task, said("4"))
    assert scored.reward == {"by_column": 3.0, "without_columns": 1.0}
    assert scored.info == {"metrics": {"seen": 1.0}}
    assert (await rewards.score(task, said("pass"))).reward == {"without_columns": 4.0}
    with pytest.raises(EnvError, match=r"gave a number for task .*: by_column"):
        await build_rewards(f"trl:{HERE}:by_column").score(task, said("pass"))
    with pytest.raises(EnvError, match=r"reward_two returned \[0.0, 0.0\] for one completion; re"):
        await build_rewards(f"trl:{SUPPORT}:reward_two").score(task, said("x"))
    texts: list[str | list[str]] = ["1", ["1"]]
    for text in texts:
        function = functools.partial(return_it, text)
        with pytest.raises(EnvError, match="for one completion; return a list with one number"):
            await TrlReward(function, "text").score(task, said("x"), None)


# -- judges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 7", 0.7),
        ("Score: 1 at first.\n**Score:** 10", 1.0),
        ('{"reason": "...", "score": 2.5}', 0.25),
        ("<think>Score: 9</think>\nScore: 0", 0.0),
        ("score = -1", None),
        ("Score: 11", None),
        ("Score: high", None),
        ("7", None),
        ("", None),
        ("underscore: 7", None),
        ("Score: 1e1", None),
        ("Score: 7/10", 0.7),
        ("Score: 7 out of 10", 0.7),
        ("Score: 7.", 0.7),
        ("```\n> Score: 7\n```", 0.7),
        ("Score: 10/5", None),
        ("Score: 7,5", None),
        ("Score: 3-5", None),
        ("Score: 50%", None),
        ("Score: 1.5.2", None),
        ("Score: 7/10/2", None),
        ("<think>At best\nScore: 9", None),
        ('It says "Score: 10".\nI give none.', None),
        ("Score:\n7", None),
    ],
)
def test_a_score_is_the_last_lines_on_the_scale(reply: str, score: float | None) -> None:
    assert parse_score(reply, (0.0, 10.0)) == score


@given(st.text(max_size=60))
def test_whatever_a_judge_says_is_a_share_or_nothing(reply: str) -> None:
    score = parse_score(f"score: {reply}", (-3.0, 5.0))
    assert score is None or 0 <= score <= 1


def test_a_prompt_is_filled_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "judge.txt"
    settings = JudgeSettings(prompt=str(file), url="http://x/v1", model="m")
    with pytest.raises(ConfigError, match=r"judge.txt, cannot be read: .*; name a text file from"):
        settings.read_prompt()
    file.write_text("Judge {question}")
    with pytest.raises(ConfigError, match=r"shows neither \{response\} nor \{conversation\}, so"):
        settings.read_prompt()
    file.write_text("{question}|{answer}|{response}|{level}|{conversation}")
    reward = JudgeReward(settings)
    task = Task(prompt="Q", answer="4", data={"row": {"level": 3, "response": "never"}})
    assert reward.fill_prompt(task, said("{answer}")) == (
        "Q|4|{answer}|3|[user] Q\n[assistant] {answer}"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 1,000.50", "1000.5"),
        ("#### 1e3", "1000"),
        ("#### -0.0", "0"),
        ("#### 0.1000000000000000000000000000000000001", "0.1000000000000000000000000000000000001"),
        ("<answer> New  York. </answer>", "new york"),
        ("<answer></answer>", None),
    ],
)
def test_equal_answers_vote_as_equal_texts(text: str, answer: str | None) -> None:
    task = Task(prompt="q", answer="1")
    assert exact_answer(task, (Message("assistant", text),)) == answer
