"""Rewards read the answer from the agent's last message."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.thinking import opened_thinking
from agentrl.message import Message
from agentrl.rewards import (
    answers,
    contains_answer,
    drop_thoughts,
    exact_answer,
    numeric_answer,
    tagged_answer,
)
from agentrl.task import Task


def said(*texts: str) -> list[Message]:
    talk = [Message("user", "?")]
    for text in texts:
        talk += [Message("assistant", text), Message("tool", "tool says 42")]
    return talk


def task(answer: object) -> Task:
    return Task(prompt="?", answer=answer)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("42", 1.0),
        (" 42\n", 1.0),
        ("I think so. Answer: 42", 1.0),
        ("answer : 41, no, Answer: 42", 1.0),
        ("Answer: 42 or Answer: 41", 0.0),
        (r"so \boxed{42}.", 1.0),
        (r"\boxed{42} and then \boxed{41}", 0.0),
        ("<answer> 42 </answer>!", 1.0),
        ("<answer>42</answer> <answer>41</answer>", 0.0),
        ("It is 42", 0.0),
        ("042", 0.0),
        ("", 0.0),
    ],
)
def test_exact_answer(text: str, score: float) -> None:
    assert exact_answer(task("42"), said("nothing", text)) == score
    assert exact_answer(task(42), said(text)) == score


@pytest.mark.parametrize("answer", ["yes", "no", "maybe"])
def test_marks_of_several_kinds_are_one_guess(answer: str) -> None:
    """Kills: every mark of the text compared, which pays who hedges."""
    text = r"<answer>yes</answer> \boxed{maybe} Answer: no"
    assert exact_answer(task(answer), said(text)) == float(answer == "yes")
    assert exact_answer(task(answer), said(text[text.index("\\") :])) == float(answer == "maybe")


@pytest.mark.parametrize(
    "thought",
    ["<think>\n{}\n</think>\n\n", "[THINK]{}[/THINK]", "{}</think>", "<think></think>{}</think>"],
)
def test_thoughts_are_no_answer(thought: str) -> None:
    """Kills: thoughts that are read, and a right answer behind one that is not paid."""
    thought = thought.replace("{}", r"\boxed{42}? Answer: 42")
    assert exact_answer(task("42"), said(f"{thought}41")) == 0.0
    assert exact_answer(task("41"), said(f"{thought}41")) == 1.0
    assert contains_answer(task("42"), said(f"{thought}41")) == 0.0
    assert numeric_answer()(task("42"), said(f"{thought}none")) == 0.0


@pytest.mark.parametrize(
    "opening", ["<think>", "[THINK]", "<|channel>thought", "<seed:think>", "<|START_THINKING|>"]
)
def test_thoughts_of_every_model_end(opening: str) -> None:
    """Kills: a mark that `agentrl.chat` reads and rewards do not; a thought that was cut off, at
    the beginning or behind another one, and is read as an answer."""
    _, close = opened_thinking(f"user\n{opening}\n")
    assert close
    assert drop_thoughts(f"{opening}41{close}42") == "42"
    assert drop_thoughts(f"{opening}42") == ""
    assert drop_thoughts(f"{opening}41{close}\n{opening}42") == ""
    assert drop_thoughts(f"42, and no {opening}") == f"42, and no {opening}"


def test_a_thought_that_never_ends_is_no_answer() -> None:
    """Kills: a turn that was cut off while it thought, paid for what it thought."""
    cut_off = said("<think>\nMaybe 41, or 42. Answer: 42")
    for reward in (exact_answer, contains_answer, numeric_answer()):
        assert reward(task("42"), cut_off) == 0.0


def test_only_the_last_assistant_message_counts() -> None:
    assert exact_answer(task("42"), said("42", "41")) == 0.0
    assert exact_answer(task("42"), [Message("user", "42")]) == 0.0


def test_braces_may_nest() -> None:
    assert exact_answer(task(r"\frac{1}{2}"), said(r"It is \boxed{\frac{1}{2}}.")) == 1.0
    assert exact_answer(task("1"), said(r"\boxed{1")) == 0.0


@pytest.mark.parametrize(
    ("text", "score"),
    [
        *(("it is 42.", 1.0), ("142", 0.0), ("42nd", 0.0), ("(42)", 1.0), ("", 0.0)),
        *(("it is -42", 0.0), ("42.5", 0.0), ("1,420", 0.0), ("1,42", 0.0), ("3.42", 0.0)),
        *(("42, or 43", 1.0), ("x = 42", 1.0), ("42%", 1.0)),
    ],
)
def test_contains_answer_wants_a_whole_word(text: str, score: float) -> None:
    assert contains_answer(task("42"), said(text)) == score


@pytest.mark.parametrize("answer", [None, "", "  \n"])
@pytest.mark.parametrize("reward", [exact_answer, contains_answer, numeric_answer()])
@pytest.mark.parametrize("text", ["None", "", "None at all"])
def test_a_task_without_an_answer_pays_nobody(answer: Any, reward: Any, text: str) -> None:
    """Kills: `None` compared as the text "None"."""
    with pytest.raises(ValueError, match=r"the task has no answer to compare with .*Task\(answer="):
        reward(task(answer), said(text))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("3.14", 1.0),
        ("about 3.149", 1.0),
        ("3.2", 0.0),
        ("first 2, then 3.14", 1.0),
        ("3.14, not 2", 0.0),
        ("Answer: 3.14 (2 digits)", 0.0),
        ("<answer>3.14</answer> in 2 steps", 1.0),
        ("none", 0.0),
        ("-3.14", 0.0),
        ("314e-2", 1.0),
    ],
)
def test_numeric_answer(text: str, score: float) -> None:
    assert numeric_answer(0.01)(task("3.14"), said(text)) == score


def test_a_typographic_minus_is_a_sign() -> None:
    """Kills: a sign that is passed over, which pays the opposite of the answer."""
    assert numeric_answer()(task("5"), said("It is \u22125.")) == 0.0
    assert numeric_answer()(task("-5"), said("It is \u22125.")) == 1.0
    assert numeric_answer()(task("\u22125"), said("It is -5.")) == 1.0
    assert numeric_answer()(task("0.02"), said("2e\u22122")) == 1.0


@pytest.mark.parametrize("answer", ["nan", "inf", "-1e999"])
def test_a_task_whose_answer_is_no_finite_number_is_refused(answer: str) -> None:
    """Kills: a task that nothing can be paid for, and nobody is told."""
    with pytest.raises(ValueError, match=rf"answer {answer!r} is no finite number.*exact_answer"):
        numeric_answer()(task(answer), said(answer))


def test_numbers_may_be_grouped() -> None:
    assert numeric_answer()(task("1,234,567"), said("It is 1234567")) == 1.0
    assert numeric_answer()(task(1234567), said("It is 1,234,567.")) == 1.0
    assert numeric_answer()(task("12,34,567.5"), said("It is 1234567.5")) == 1.0


def test_a_comma_that_groups_nothing_ends_a_number() -> None:
    """Kills: digits read as one number across a comma, which pays 34 for a list of 3 and 4."""
    assert numeric_answer()(task("34"), said("It is 3,4.")) == 0.0
    assert numeric_answer()(task("4"), said("x,y = 3,4")) == 1.0
    assert numeric_answer()(task("1234"), said("12,34")) == 0.0
    assert numeric_answer()(task("4567"), said("1234,4567")) == 1.0
    assert numeric_answer()(task("42"), said("It is 42, or so")) == 1.0
    assert numeric_answer()(task("4e5"), said("3,4e5")) == 1.0
    assert numeric_answer()(task("-1234.5"), said("\u22121,234.5")) == 1.0
    assert numeric_answer()(task("5"), said("1" + ",11" * 10**6 + ",5")) == 1.0
    with pytest.raises(ValueError, match="3,4"):
        numeric_answer()(task("3,4"), said("34"))


@given(st.text(min_size=1).filter(lambda text: text.strip()))
def test_the_answer_itself_is_always_exact(answer: str) -> None:
    assert exact_answer(task(answer), said(answer)) == 1.0


@given(st.floats(-1e6, 1e6), st.floats(0.001, 100.0))
def test_the_tolerance_is_absolute(wanted: float, tolerance: float) -> None:
    """A mutant with a relative tolerance, or without abs(), is caught."""
    reward = numeric_answer(tolerance)
    assert reward(task(wanted), said(repr(wanted + 0.5 * tolerance))) == 1.0
    assert reward(task(wanted), said(repr(wanted + 2 * tolerance))) == 0.0
    assert reward(task(wanted), said(repr(wanted - 2 * tolerance))) == 0.0


@given(
    st.lists(st.sampled_from(["<answer>", "</answer>", "<ANSWER>", "1", "<", "\n"])).map("".join)
)
def test_tagged_answer_is_the_last_block(text: str) -> None:
    blocks = re.findall("<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    assert tagged_answer(text) == (blocks[-1] if blocks else None)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"} \boxed{1} \boxed{ {2}", "1"),
        (r"\boxed{ {1}", None),
    ],
)
def test_the_last_closed_box_counts(text: str, boxed: str | None) -> None:
    assert answers(said(text))[1:] == (() if boxed is None else (boxed,))


def test_unclosed_tags_and_boxes_take_no_time() -> None:
    for unit in ("<answer>", r"\boxed{", "{"):
        assert exact_answer(task("1"), said(unit * 50_000)) == 0.0
