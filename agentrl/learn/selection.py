"""Contract of the selection slot: the rows of a batch that train, once their credit is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.learn.micro_batch import CreditedSample


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionContext:
    """Point of the run at which a batch is selected from."""

    step: int
    """Training steps before this one."""
    steps: int
    """Training steps of the whole run; 0 where it is not known."""
    seed: int
    """Seed of this step's random choices."""


SelectionFunction = Callable[[Sequence[CreditedSample], SelectionContext], Sequence[CreditedSample]]
"""The selection slot: the rows of a batch, all groups in order, to those that train. A row may be
left out, or come back with other `weights` or `advantages`, or with fewer tokens in its mask; what
it is divided by follows from the masks of the rows that are returned."""
