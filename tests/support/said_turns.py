"""Turns that are said one after the other, letter by letter."""

from collections.abc import Callable, Iterable

from agentrl.policy import GenerateRequest
from benchmarks.letters import END, ids


def saying(*turns: str, seen: list[str] | None = None) -> Callable[[GenerateRequest], list[int]]:
    """Say these turns one after the other, noting the contexts they are said in."""
    left = list(turns)

    def reply(request: GenerateRequest) -> list[int]:
        if seen is not None:
            seen.append("".join(map(chr, request.prompt)).replace(chr(END), "."))
        return [*ids(left.pop(0)), END]

    return reply


def text_of(tokens: Iterable[int]) -> str:
    return "".join("." if token == END else chr(token) for token in tokens)
