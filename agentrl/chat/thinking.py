"""Thinking blocks: part of what the agent said, and never searched for tool calls."""

OPEN = "<think>"
CLOSE = "</think>"


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
