"""What of a batch trains, once its credit is known. The slot's contract."""

from collections.abc import Callable, Sequence

from agentrl.learn.batch import Row

SelectionFunction = Callable[[Sequence[Row]], Sequence[Row]]
"""The selection slot: the rows of a batch, all groups in order, to those that train. A row may be
left out, or come back with other `weights` or `advantages`; what it is divided by follows from the
masks of the rows that are returned."""
