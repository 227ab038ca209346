"""Rewards for tasks whose answer is a text or a number, read from the agent's last message."""

import re
from collections.abc import Callable, Sequence

from agentrl.message import Message
from agentrl.task import Task

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


def exact_answer(task: Task, messages: Sequence[Message]) -> float:
    """Return 1.0 if the final answer is `task.answer`, compared as text without outer spaces.

    The final answer is the last assistant message, or what it marks as the answer: the last
    `<answer>...</answer>`, the last `\\boxed{...}`, or what follows the last `Answer:`.
    """
    wanted = str(task.answer).strip()
    return float(any(wanted == answer for answer in answers(messages)))


def contains_answer(task: Task, messages: Sequence[Message]) -> float:
    """Return 1.0 if the last assistant message has `task.answer` in it as a whole word."""
    wanted = re.escape(str(task.answer).strip())
    found = re.search(rf"(?<!\w){wanted}(?!\w)", last_text(messages))
    return float(bool(wanted) and found is not None)


def numeric_answer(tolerance: float = 1e-6) -> Callable[[Task, Sequence[Message]], float]:
    """Return a reward: 1.0 if the answer's last number is within `tolerance` of `task.answer`.

    The tolerance is absolute. A marked answer (see `exact_answer`) is read before the whole text.
    """

    def reward(task: Task, messages: Sequence[Message]) -> float:
        wanted = float(str(task.answer).replace(",", ""))
        for answer in answers(messages)[::-1]:
            if numbers := _NUMBER.findall(answer):
                return float(abs(float(numbers[-1].replace(",", "")) - wanted) <= tolerance)
        return 0.0

    return reward


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message, or nothing if there is none."""
    for message in reversed(messages):
        if message.role == "assistant":
            return message.text
    return ""


def answers(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return what may count as the final answer: the whole last text, then what it marks."""
    text = last_text(messages)
    marked = [
        *re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)[-1:],
        *_boxed(text)[-1:],
        *re.split(r"answer\s*:", text, flags=re.IGNORECASE)[1:][-1:],
    ]
    return tuple(answer.strip() for answer in (text, *marked))


def _boxed(text: str) -> list[str]:
    """Return the contents of every `\\boxed{...}`, whose braces may nest."""
    found: list[str] = []
    for start in re.finditer(r"\\boxed\{", text):
        depth, at = 1, start.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            found.append(text[start.end() : at - 1])
    return found
