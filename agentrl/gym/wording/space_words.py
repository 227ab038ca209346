"""Elements of Gymnasium spaces in words, and words as elements."""

import re
from collections import Counter
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from gymnasium import Space, spaces

OBSERVATION_WAY_OUT = (
    "name a function that tells an observation, describe: module:function (observation -> text, "
    "or a list of texts and images), or wrap it in a gymnasium.ObservationWrapper"
)
ACTION_WAY_OUT = (
    "name a function that reads an action, act: module:function (text -> action), or wrap it in a "
    "gymnasium.ActionWrapper"
)

_NUMBER = r"-?\d{1,18}"


def is_text_space(space: Space[Any]) -> bool:
    """Return whether the elements of a space are texts: Gymnasium's `Text`, or one like it."""
    if isinstance(space, spaces.Text):
        return True
    is_own = not type(space).__module__.startswith("gymnasium.")
    return is_own and bool(space.contains("text")) and not space.contains(0)


def find_word_fault(space: Space[Any], *, what: str, way_out: str) -> str:
    """Return why a space has no words, or an empty string; `what` are its elements."""
    parts: tuple[Space[Any], ...] = (space,)
    if isinstance(space, spaces.Tuple) and what == "observations":
        parts = space.spaces
    for part in parts:
        if not isinstance(part, spaces.Discrete | spaces.MultiDiscrete) and not is_text_space(part):
            return (
                f"the {what} of this environment are {space}, but only Text, Discrete and "
                f"MultiDiscrete can be expressed in words; {way_out}"
            )
    return ""


def state_words(space: Space[Any], value: Any) -> str:
    """Return an observation in words: text as it is, numbers in order.

    Raises `ValueError` for one that is no text where the space is of texts.
    """
    if is_text_space(space):
        if not isinstance(value, str):
            raise ValueError(
                f"an observation is {value!r:.80}, but its space is {space}; return text"
            )
        return str(value)
    if isinstance(space, spaces.Tuple) and any(is_text_space(part) for part in space.spaces):
        return "\n".join(
            state_words(part, item) for part, item in zip(space.spaces, value, strict=True)
        )
    try:
        numbers = [int(part) for part in np.ravel(np.asarray(value))]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"an observation is {value!r:.80}, but its space is {space}; return one of its elements"
        ) from error
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


def find_name_fault(space: Space[Any], names: Sequence[str]) -> str:
    """Return why names do not fit the actions of a space, or an empty string."""
    if not isinstance(space, spaces.Discrete):
        return (
            f"actions names the actions of a Discrete space, but this environment's are {space}; "
            "remove it, or read texts with act"
        )
    if len(names) != space.n:
        return f"actions has {len(names)} names, but this environment has {space.n} actions"
    for place, name in enumerate(map(_simplify, names)):
        number = int(space.start) + place
        if re.fullmatch(_NUMBER, name) and int(name) != number:
            return f"actions names action {number} {name!r}, the number of another; use a word"
    return ""


def find_names_fault(names: Any) -> str:
    """Return why something is no list of names that differ, or an empty string."""
    if isinstance(names, list | tuple):
        values: Sequence[Any] = names
        if all(isinstance(name, str) and _simplify(name) for name in values):
            repeats = [name for name, count in Counter(map(_simplify, values)).items() if count > 1]
            return f"actions has {repeats[0]!r} twice; give each action a name" if repeats else ""
    return f"actions is {names!r:.80}; give a list with a name for each action, such as [left, up]"


def read_action(space: Space[Any], names: Sequence[str], text: str) -> Any | None:
    """Return the action that `text` names, by its name or its number, or None if it is none."""
    words = _simplify(text)
    if isinstance(space, spaces.MultiDiscrete):
        digits = re.findall(r"-?\d+", words)
        shape = space.nvec.shape
        if len(digits) != int(np.prod(shape)) or any(len(one) > 19 for one in digits):
            return None
        numbers = [int(one) for one in digits]
        if any(not -(2**63) <= number < 2**63 for number in numbers):
            return None
        action: Any = np.asarray(numbers, dtype=np.int64).reshape(shape).astype(space.dtype)
        return action if space.contains(action) else None
    if not isinstance(space, spaces.Discrete):
        return text if is_text_space(space) and space.contains(text) else None
    simple = [_simplify(name) for name in names]
    if words in simple:
        number = np.int64(int(space.start) + simple.index(words))
    elif re.fullmatch(_NUMBER, words):
        number = np.int64(int(words))
    else:
        return None
    return number if space.contains(number) else None


def _simplify(text: str) -> str:
    """Return a name or a number without what stands around it, in lower case."""
    return text.strip().strip(".!`*\"'").lower()


def fit_action(space: Space[Any], action: Any) -> Any | None:
    """Return an action in the type of its space; None for one that is not in it."""
    try:
        if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
            values = np.asarray(action)
            action = values.astype(space.dtype)
            if np.issubdtype(space.dtype, np.integer) and not np.array_equal(values, action):
                return None
        elif isinstance(space, spaces.Discrete) and not isinstance(action, bool):
            action = np.int64(index(action))
        return action if space.contains(action) else None
    except (TypeError, ValueError, OverflowError):
        return None
