"""Elements of Gymnasium spaces in words, and words as elements."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentrl.errors import ConfigError


def check_words(space: Space[Any], *, what: str) -> None:
    """Raise `ConfigError` for a space that has no words; `what` is it of."""
    parts: tuple[Space[Any], ...] = (space,)
    if isinstance(space, spaces.Tuple) and what == "observations":
        parts = space.spaces
    for part in parts:
        if not isinstance(part, spaces.Text | spaces.Discrete | spaces.MultiDiscrete):
            raise ConfigError(
                f"the {what} of this environment are {space}, but only Text, Discrete and "
                "MultiDiscrete can be expressed in words; wrap it in a "
                "gymnasium.ObservationWrapper or ActionWrapper that converts them, or pass "
                "describe=... for observations"
            )


def state_words(space: Space[Any], value: Any) -> str:
    """Return an observation in words: text as it is, numbers in order."""
    if isinstance(space, spaces.Text):
        return str(value)
    numbers = [int(part) for part in np.ravel(np.asarray(value))]
    return f"State: {' '.join(map(str, numbers))}"


def action_words(space: Space[Any], names: Sequence[str]) -> str:
    """Return an instruction for acting in a space; empty for actions that are texts."""
    if isinstance(space, spaces.Discrete):
        if names:
            return f"Answer with one action: {', '.join(names)}."
        first, last = int(space.start), int(space.start + space.n) - 1
        return f"Answer with one action, a number from {first} to {last}."
    if isinstance(space, spaces.MultiDiscrete):
        low = np.ravel(space.start)
        ranges = [f"{a} to {a + n - 1}" for a, n in zip(low, np.ravel(space.nvec), strict=True)]
        return f"Answer with {len(ranges)} numbers: {', '.join(ranges)}."
    return ""


def read_action(space: Space[Any], names: Sequence[str], text: str) -> Any | None:
    """Return the action that `text` names, by its name or its number, or None if it is none."""
    words = text.strip().strip(".!`*\"'").lower()
    if isinstance(space, spaces.Text):
        return text if space.contains(text) else None
    if isinstance(space, spaces.MultiDiscrete):
        numbers = [int(number) for number in re.findall(r"-?\d+", words)]
        shape = space.nvec.shape
        if len(numbers) != int(np.prod(shape)):
            return None
        action: Any = np.asarray(numbers, dtype=np.int64).reshape(shape).astype(space.dtype)
        return action if space.contains(action) else None
    if not isinstance(space, spaces.Discrete):
        return None
    lowered = [name.lower() for name in names]
    if words in lowered:
        return np.int64(int(space.start) + lowered.index(words))
    if re.fullmatch(r"-?\d{1,18}", words) is None:
        return None
    number = np.int64(int(words))
    return number if space.contains(number) else None
