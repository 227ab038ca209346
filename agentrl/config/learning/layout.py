"""Layouts of the sequences of a micro-batch for a forward pass."""

from typing import Literal

LayoutName = Literal["padded", "packed", "tree"]
"""`padded` gives every sequence a line of its own; `packed` puts them one after the other in one
line; `tree` does so too, and stores what sequences begin with in common once."""
