"""Ways to lay out sequences for a forward pass; the contract is `learn/tokens.py`."""

from collections.abc import Callable, Mapping

from agentrl.config.learning.layout import LayoutName
from agentrl.learn.layouts.packed import Packed
from agentrl.learn.layouts.padded import Padded
from agentrl.learn.layouts.tree import Tree
from agentrl.learn.tokens import Layout

LAYOUTS: Mapping[LayoutName, Callable[[int], Layout]] = {
    "padded": Padded,
    "packed": Packed,
    "tree": Tree,
}
"""Every layout, made of the most tokens of one forward pass."""
