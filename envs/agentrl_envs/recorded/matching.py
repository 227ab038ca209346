"""Whether an action does what the expert did. Pure; what counts as the same is configured."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from agentrl.env import Action, Box
from agentrl.errors import ConfigError
from agentrl.message import ToolCall
from agentrl_envs.recorded.pointing import PointedScreen, is_same_gesture, verb_of

Matches = Callable[[Action, Action, Mapping[int, Box]], bool]
"""Of what the policy did, what the expert did, and where the elements were, by their numbers."""
_NOWHERE: Mapping[int, Box] = {}

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMatcher:
    """The same tools with the same arguments in the same order; without calls, the same text.

    Text beside calls, and thinking blocks, say nothing about what is done. Actions on a screen are
    compared by what they do there; see `pointing.is_same_gesture`.
    """

    tolerance: float = 1e-9
    """Most two numbers may differ, relative to the greater or in absolute terms."""
    text: Literal["exact", "spaces", "folded"] = "spaces"
    """As it is; without outer spaces and with inner ones as single blanks; and without case too."""
    ignore: tuple[str, ...] = ()
    """Arguments that may differ, by name or as `tool.name`."""
    radius: float = 0.0
    """Greatest distance from an expert's point that hit no element, in units of coordinates."""

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:
            raise ConfigError(f"matching.tolerance must be at least 0, got {self.tolerance}")
        if not self.radius >= 0:
            raise ConfigError(f"matching.radius must be at least 0, got {self.radius}")
        if self.text not in ("exact", "spaces", "folded"):
            raise ConfigError(
                f"matching.text is {self.text!r}; it must be exact, spaces, or folded"
            )

    def __call__(self, said: Action, expert: Action, places: Mapping[int, Box] = _NOWHERE) -> bool:
        """Return whether `said` does what `expert` does, where elements have these places."""
        if not is_same_kind(said, expert):
            return False
        if not expert.tool_calls:
            return self._is_same(spoken(said), spoken(expert))
        screen = PointedScreen(places=places, radius=self.radius, same=self._is_same)
        pairs = zip(said.tool_calls, expert.tool_calls, strict=True)
        return all(self._matches(mine, theirs, screen) for mine, theirs in pairs)

    def _matches(self, said: ToolCall, expert: ToolCall, screen: PointedScreen) -> bool:
        mine = self._select_arguments(said.name, said.arguments)
        theirs = self._select_arguments(expert.name, expert.arguments)
        if verb_of(theirs) is not None:
            return is_same_gesture(mine, theirs, screen)
        return self._is_same(mine, theirs)

    def _select_arguments(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in arguments.items()
            if name not in self.ignore and f"{tool}.{name}" not in self.ignore
        }

    def _is_same(self, one: Any, other: Any) -> bool:
        if _is_number(one) and _is_number(other):
            return math.isclose(one, other, rel_tol=self.tolerance, abs_tol=self.tolerance)
        if isinstance(one, str) and isinstance(other, str):
            return self._normalise(one) == self._normalise(other)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            mine, yours = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
            return mine.keys() == yours.keys() and all(
                self._is_same(mine[k], yours[k]) for k in mine
            )
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            ours, theirs = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
            return len(ours) == len(theirs) and all(map(self._is_same, ours, theirs))
        return type(one) is type(other) and one == other

    def _normalise(self, text: str) -> str:
        if self.text == "exact":
            return text
        joined = " ".join(text.split())
        return joined.casefold() if self.text == "folded" else joined


def is_same_kind(said: Action, expert: Action) -> bool:
    """Return whether the same tools are called in the same order, or none.

    On a screen the kind of a call is what it does there: a click is no scroll.
    """
    return not said.malformed and [*map(_kind, said.tool_calls)] == [*map(_kind, expert.tool_calls)]


def _kind(call: ToolCall) -> tuple[str, str | None]:
    return call.name, verb_of(call.arguments)


def spoken(action: Action) -> str:
    """Return the text outside thinking blocks."""
    end, parts = 0, list[str]()
    for start, next_end in _thinking_blocks(action.text):
        parts.append(action.text[end:start])
        end = next_end
    return "".join([*parts, action.text[end:]])


def has_thought(action: Action) -> bool:
    """Return whether something is thought: in a block of its own, or beside the calls."""
    for start, end in _thinking_blocks(action.text):
        return bool(action.text[start + len(_OPEN) : end - len(_CLOSE)].strip())
    return bool(action.tool_calls) and bool(action.text.strip())


def _thinking_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each closed block starts and ends, its tags included."""
    end = 0
    while (start := text.find(_OPEN, end)) >= 0:
        closed = text.find(_CLOSE, start)
        if closed < 0:
            return
        end = closed + len(_CLOSE)
        yield start, end


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
