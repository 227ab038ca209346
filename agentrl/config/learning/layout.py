"""Layouts of the sequences of a micro-batch for a forward pass."""

from typing import Literal

LayoutName = Literal["padded", "packed", "tree"]
"""`padded` puts each sequence in a row of its own; `packed` concatenates sequences in one row;
`tree` also stores common prefixes only once."""
