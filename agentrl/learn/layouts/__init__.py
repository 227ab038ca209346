"""Ways to lay out sequences for a forward pass; the contract is `learn/tokens.py`."""

from collections.abc import Mapping
from typing import Protocol

from agentrl.config.learning.layout import LayoutName
from agentrl.learn.layouts.packed import Packed
from agentrl.learn.layouts.padded import Padded
from agentrl.learn.layouts.tree import Tree
from agentrl.learn.tokens import Layout
from agentrl.vision.processor import ImageProcessor


class _Makes(Protocol):
    def __call__(self, limit_tokens: int, processor: ImageProcessor | None = None, /) -> Layout: ...


LAYOUTS: Mapping[LayoutName, _Makes] = {
    "padded": Padded,
    "packed": Packed,
    "tree": Tree,
}
"""Every layout, made of the most tokens of one forward pass and of what cuts up images."""
