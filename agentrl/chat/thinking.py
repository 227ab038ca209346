"""Thinking blocks: part of what the agent said, and never searched for tool calls."""

import re
from functools import cache

OPEN = "<think>"
CLOSE = "</think>"
Marks = tuple[tuple[str, str], ...]
"""Pairs of a mark that opens a thinking block and the one that closes it."""
MARKS: Marks = ((OPEN, CLOSE),)
MISTRAL_MARKS: Marks = (*MARKS, ("[THINK]", "[/THINK]"))
GEMMA4_MARKS: Marks = (*MARKS, ("<|channel>thought", "<channel|>"))

_OTHER_MARKS: Marks = (
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)

_CLOSES: dict[str, str] = dict((*MISTRAL_MARKS, *GEMMA4_MARKS, *_OTHER_MARKS))
_BLOCK = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_OPENED = re.compile(
    rf"({'|'.join(map(re.escape, _CLOSES))})\s*"
    rf"(?:({'|'.join(map(re.escape, _CLOSES.values()))})\s*)?\Z"
)


def opened_thinking(prompt: str) -> tuple[str, str]:
    """Return a generation prompt without the thinking block that it opens, and the mark that closes
    the block if the turn begins inside it, or an empty text."""
    match = _OPENED.search(prompt)
    if match is None:
        return prompt, ""
    return prompt[: match.start()], _CLOSES[match[1]] if match[2] is None else ""


def split_thinking(text: str) -> tuple[str, str]:
    """Return the thought that a turn begins with, and what it says; no thought is empty."""
    match = _BLOCK.match(text)
    return ("", text) if match is None else (match[1], text[match.end() :])


def join_thinking(thought: str, said: str) -> str:
    """Return a turn that begins with a thought; `split_thinking` takes it apart again."""
    return f"{OPEN}\n{thought}\n{CLOSE}\n\n{said}" if thought else said


def end_of_thinking(text: str, close: str = CLOSE) -> int:
    """Return the index at which a text leaves the thinking block it began in, which `close` closes;
    0 where that is empty, because it began in none, and the end of a text that never leaves it."""
    at = text.find(close)
    return len(text) if at < 0 else at + len(close)


def find_spoken(text: str, what: str, start: int, marks: Marks = MARKS) -> int:
    """Return the first index of `what` outside thinking blocks, -1 if it is nowhere.

    `start` lies outside them; `marks` stand around them. A block that is never closed
    reaches to the end. The work is linear in the text, however many blocks there are.
    """
    opens, closes = _opens(marks), dict(marks)
    at = start
    while (at := text.find(what, max(at, start))) >= 0:
        thinking = opens.search(text, start, at)
        if thinking is None:
            return at
        close = closes[thinking[0]]
        closed = text.find(close, thinking.end())
        if closed < 0:
            return -1
        start = closed + len(close)
    return -1


@cache
def _opens(marks: Marks) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark, _ in marks))
