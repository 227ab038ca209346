"""Branching rule: a chance, from the rise in uncertainty and the number of splits so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.runtime.seeds import derive

Draw = Callable[[int, str, Sequence[int | str]], float]
"""Uniform in [0, 1), by run seed, task id and what it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchChance:
    """A rule's answer. A branch opens when a uniform draw from [0, 1) is below `value`."""

    value: float
    """Within [0, 1]; a rule with a fixed threshold answers 0 or 1."""
    factor: float = 1.0
    """Factor that remains after consecutive branches on this path."""
    score: float | None = None
    """Score that a fixed threshold is compared with; None where a draw decides."""
    threshold: float = 0.0


class BranchRule(Protocol):
    """One method's branch decision, as a number."""

    def chance(self, rise: float, streak: int) -> BranchChance:
        """Return the chance of each branch.

        `rise` is the signal here less the one at the start of the trajectory; `streak` how many
        boundaries in a row, up to here, have branched on this path.
        """
        ...


def draw_seeded(seed: int, task_id: str, what: Sequence[int | str]) -> float:
    """Return the draw that the run seed, the task and its purpose stand for."""
    return (derive(seed, task_id, *what) >> 10) / 2**53


def clip(value: float) -> float:
    """Return the nearest number within [0, 1]."""
    return min(1.0, max(0.0, value))
