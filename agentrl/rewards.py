"""Rewards for tasks whose answer is a text or a number, read from the agent's last message."""

import math
import re
import string
from collections.abc import Callable, Sequence

from agentrl.message import Message
from agentrl.task import Task

_MINUS = "\u2212"
"""Sign of typeset numbers, which `float` does not read."""
_NUMBER = re.compile(rf"[-+{_MINUS}]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+{_MINUS}]?\d+)?")
_ANSWER_TAG = re.compile(r"<(?P<closing>/)?answer>", re.IGNORECASE)
_THOUGHT_STARTS = ("<think>", "[THINK]", "<|channel>thought", "<seed:think>", "<|START_THINKING|>")
_THOUGHT_ENDS = ("</think>", "[/THINK]", "<channel|>", "</seed:think>", "<|END_THINKING|>")
"""Marks around a thinking block, of all models that `agentrl.chat` reads."""
_LABEL = re.compile(r"\banswer\s*:", re.IGNORECASE)
_BRACE = re.compile(r"\\boxed\{|[{}]")


def _read_reference(task: Task) -> str:
    """Return a task's answer as text without outer spaces; `ValueError` where there is none: who
    says nothing would be paid."""
    reference = "" if task.answer is None else str(task.answer).strip()
    if not reference:
        raise ValueError(
            f"the task has no answer to compare with (its answer is {task.answer!r}); give "
            "Task(answer=...) one, or use another reward"
        )
    return reference


def exact_answer(task: Task, messages: Sequence[Message]) -> float:
    """Return 1.0 if the final answer is `task.answer`, compared as text without outer spaces.

    The final answer is the last assistant message without its thoughts, or what that marks as the
    answer: the last `<answer>...</answer>`, else the last `\\boxed{...}`, else what follows the
    last `Answer:`. Every other answer, and none, is 0.0.

    Args:
        task: Task that was played; its `answer` is read as text.
        messages: The whole conversation.

    Raises:
        ValueError: The task has no answer.
    """
    ground_truth = _read_reference(task)
    return float(any(ground_truth == answer for answer in answers(messages)))


def contains_answer(task: Task, messages: Sequence[Message]) -> float:
    """Return 1.0 if the last assistant message has `task.answer` in it as a whole word, else 0.0.

    Thoughts do not count. A number is no part of another one: 42 is not in `-42`, `42.5` or
    `1,420`. A message that lists many words is paid too, so prefer `exact_answer` for training.

    Args:
        task: Task that was played; its `answer` is read as text, and case counts.
        messages: The whole conversation.

    Raises:
        ValueError: The task has no answer.
    """
    answer = _read_reference(task)
    before = r"(?<![\w.+\-\u2212])(?<!\d,)" if answer[:1].isdigit() else r"(?<!\w)"
    after = r"(?!\w)(?![.,]\d)" if answer[-1:].isdigit() else r"(?!\w)"
    match = re.search(f"{before}{re.escape(answer)}{after}", drop_thoughts(last_text(messages)))
    return float(match is not None)


def numeric_answer(tolerance: float = 1e-6) -> Callable[[Task, Sequence[Message]], float]:
    """Return a reward function: 1.0 if the answer's last number is near `task.answer`, else 0.0.

    A marked answer (see `exact_answer`) is read before the whole text. Commas group thousands
    (1,234,567 or 12,34,567); any other comma ends a number. The function raises `ValueError` for a
    task whose answer is no finite number, which fails the trajectory.

    Args:
        tolerance: Largest absolute difference that is paid.
    """

    def reward(task: Task, messages: Sequence[Message]) -> float:
        ground_truth = _read_number(_read_reference(task))
        if not math.isfinite(ground_truth):
            raise ValueError(
                f"the task's answer {task.answer!r} is no finite number, so no answer is near it; "
                "give it one, or use exact_answer"
            )
        for answer in answers(messages)[::-1]:
            if numbers := _NUMBER.findall(answer):
                last = _drop_group_commas(numbers[-1].rstrip(",")).rpartition(",")[2]
                return float(abs(_read_number(last) - ground_truth) <= tolerance)
        return 0.0

    return reward


def _read_number(text: str) -> float:
    return float(_drop_group_commas(text).replace(_MINUS, "-"))


def _drop_group_commas(text: str) -> str:
    """Return a number without the commas between its groups of digits, and other text as it is.

    The last group has three digits, the first at most three, and those between two or three.
    """
    if "," not in text:
        return text
    first, *inner, last = text.split(",")
    is_grouped = (
        1 <= len(first.lstrip("-+" + _MINUS)) <= 3
        and all(2 <= len(group) <= 3 for group in inner)
        and len(last) - len(last.lstrip(string.digits)) == 3
    )
    return text.replace(",", "") if is_grouped else text


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message, or an empty one if there is none.

    Args:
        messages: The whole conversation.
    """
    for message in reversed(messages):
        if message.role == "assistant":
            return message.text
    return ""


def answers(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the candidates for the final answer: the last text without thoughts, then its mark.

    Args:
        messages: The whole conversation.
    """
    text = drop_thoughts(last_text(messages))
    marked = marked_answer(text)
    return (text.strip(),) if marked is None else (text.strip(), marked)


def drop_thoughts(text: str) -> str:
    """Return the part of a text behind its last thinking block; all of it without one.

    Empty where that part begins with a block that is never closed: the turn was cut off.

    Args:
        text: Text of a model, with blocks such as `<think>...</think>`.
    """
    ends = (text.rfind(end) + len(end) for end in _THOUGHT_ENDS if end in text)
    spoken = text[max(ends, default=0) :]
    return "" if spoken.lstrip().startswith(_THOUGHT_STARTS) else spoken


def marked_answer(text: str) -> str | None:
    """Return the answer that a text marks as final; None where it marks none.

    The last `<answer>...</answer>`, else the last `\\boxed{...}`, else what follows the last
    `Answer:`, without outer spaces.

    Args:
        text: Text of any length.
    """
    for marked in (tagged_answer(text), boxed_answer(text)):
        if marked is not None:
            return marked.strip()
    labelled = _LABEL.split(text)
    return labelled[-1].strip() if len(labelled) > 1 else None


def tagged_answer(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>` of a text, in linear time.

    None without one. A tag opens unless one is open already, and the next closing tag ends it.

    Args:
        text: Text of any length; tags may be written in capitals.
    """
    start: int | None = None
    answer: str | None = None
    for tag in _ANSWER_TAG.finditer(text):
        if tag["closing"] is None:
            start = tag.end() if start is None else start
        elif start is not None:
            start, answer = None, text[start : tag.start()]
    return answer


def boxed_answer(text: str) -> str | None:
    """Return the content of the last `\\boxed{...}` that is closed, in linear time.

    None without one. Braces inside may nest.

    Args:
        text: Text of any length.
    """
    starts: list[int | None] = []
    last = (-1, -1)
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            starts.append(brace.end() if brace[0] != "{" else None)
        elif starts and (start := starts.pop()) is not None:
            last = max(last, (start, brace.start()))
    return text[slice(*last)] if last[0] >= 0 else None
