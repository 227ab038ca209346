"""What of a batch trains, once its credit is known. The slot's contract."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.learn.batch import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When in a run a batch is selected from."""

    step: int
    """Training steps before this one."""
    steps: int
    """Of the whole run; 0 where it is not known."""
    seed: int
    """Of this step's random choices."""


SelectionFunction = Callable[[Sequence[Row], Moment], Sequence[Row]]
"""The selection slot: the rows of a batch, all groups in order, to those that train. A row may be
left out, or come back with other `weights` or `advantages`, or with fewer tokens in its mask; what
it is divided by follows from the masks of the rows that are returned."""
