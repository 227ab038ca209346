"""Choice of the exported trajectories: conditions such as `reward>=0.5`, all of which must hold."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

from agentrl.errors import ConfigError
from agentrl.export.episode import ExportedTrajectory

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBERS: Mapping[str, Callable[[ExportedTrajectory], float | None]] = {
    "group": lambda e: e.group,
    "reward": lambda e: e.reward,
    "sample": lambda e: e.sample,
    "seconds": lambda e: e.seconds,
    "step": lambda e: e.step,
    "tool_calls": lambda e: e.tool_calls,
    "turns": lambda e: len(e.turns),
}
_TEXTS: Mapping[str, Callable[[ExportedTrajectory], tuple[str, ...]]] = {
    "group_state": lambda e: (e.group_state,),
    "outcome": lambda e: (e.outcome_name, e.outcome_name.partition("_")[0]),
    "split": lambda e: (e.task.split,),
    "tag": lambda e: e.task.tags,
    "task": lambda e: (e.task.id,),
}
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ExportCondition:
    """One condition."""

    name: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME COMPARISON VALUE`; raise `ConfigError` for anything else."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"--filter {text!r} is not a condition; write one such as reward>=0.5, "
                "outcome=finished or tag!=hard"
            )
        name, comparison, value = match.groups()
        if name in _NUMBERS:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                raise ConfigError(f"--filter {text!r}: {name} must be compared with a number")
            return cls(name, comparison, number)
        if name not in _TEXTS:
            names = sorted([*_NUMBERS, *_TEXTS])
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(names)}"
            raise ConfigError(f"--filter {text!r}: there is no field {name!r}; {hint}")
        if comparison not in ("=", "!="):
            raise ConfigError(f"--filter {text!r}: {name} is text; compare it with = or !=")
        return cls(name, comparison, value)

    def holds(self, episode: ExportedTrajectory) -> bool:
        """Return whether it holds. A failure has no reward, so nothing holds of that."""
        if self.name in _TEXTS:
            return (self.value in _TEXTS[self.name](episode)) == (self.comparison == "=")
        number = _NUMBERS[self.name](episode)
        return number is not None and _COMPARE[self.comparison](number, self.value)
