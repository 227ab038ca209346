"""Thinking blocks: part of what the agent said, and never searched for tool calls."""

import re

OPEN = "<think>"
CLOSE = "</think>"

_BLOCK = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_OPENED = re.compile(
    r"(<think>|\[THINK\]|<seed:think>|<\|channel>thought|<\|START_THINKING\|>)\s*"
    r"(?:(</think>|\[/THINK\]|</seed:think>|<channel\|>|<\|END_THINKING\|>)\s*)?\Z"
)


def opened_thinking(prompt: str) -> tuple[str, bool]:
    """Return a generation prompt without the thinking block that it opens, and whether the turn
    begins inside that block."""
    match = _OPENED.search(prompt)
    return (prompt, False) if match is None else (prompt[: match.start()], match[2] is None)


def split_thinking(text: str) -> tuple[str, str]:
    """Return the thought that a turn begins with, and what it says; no thought is empty."""
    match = _BLOCK.match(text)
    return ("", text) if match is None else (match[1], text[match.end() :])


def join_thinking(thought: str, said: str) -> str:
    """Return a turn that begins with a thought; `split_thinking` takes it apart again."""
    return f"{OPEN}\n{thought}\n{CLOSE}\n\n{said}" if thought else said


def end_of_thinking(text: str) -> int:
    """Return the index at which a text leaves the thinking block it began in; its end if never."""
    at = text.find(CLOSE)
    return len(text) if at < 0 else at + len(CLOSE)


def find_spoken(text: str, what: str, start: int) -> int:
    """Return the first index of `what` outside thinking blocks, -1 if it is nowhere.

    `start` lies outside them. A block that is never closed reaches to the end. The work is linear
    in the text, however many blocks there are.
    """
    at = start
    while (at := text.find(what, max(at, start))) >= 0:
        thinking = text.find(OPEN, start, at)
        if thinking < 0:
            return at
        closed = text.find(CLOSE, thinking)
        if closed < 0:
            return -1
        start = closed + len(CLOSE)
    return -1
