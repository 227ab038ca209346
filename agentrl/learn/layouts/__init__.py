"""Ways to lay out sequences for a forward pass; the contract is `learn/sequence_layout.py`."""

from collections.abc import Mapping
from typing import Protocol

from agentrl.config.learn import LayoutName
from agentrl.learn.layouts.packed import PackedLayout
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.layouts.tree import PrefixTreeLayout
from agentrl.learn.sequence_layout import SequenceLayout
from agentrl.models.vision.processor import ImageProcessor


class _Makes(Protocol):
    def __call__(
        self, limit_tokens: int, processor: ImageProcessor | None = None, /
    ) -> SequenceLayout: ...


LAYOUTS: Mapping[LayoutName, _Makes] = {
    "padded": PaddedLayout,
    "packed": PackedLayout,
    "tree": PrefixTreeLayout,
}
"""Every layout, made of the most tokens of one forward pass and of what cuts up images."""
