"""Words for one class of environments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWording:
    """Texts that describe one environment to a reader."""

    rules: str | Callable[[Any], str]
    """Beginning of every prompt, or a function of the unwrapped environment that returns it."""
    actions: tuple[str, ...] = ()
    """The names of actions 0, 1, 2, ..."""
    describe: Callable[[Any, Any], str]
    """From the unwrapped environment and an observation to a description."""
    find_action_fault: Callable[[Any, Any], str] | None = None
    """From the unwrapped environment and an action of its space to the reason why it is refused,
    or an empty string."""
