"""Ways to lay out sequences for a forward pass; the contract is `learn/sequence_layout.py`."""

from collections.abc import Mapping

from agentrl.config.learn import LayoutName
from agentrl.learn.layouts.packed import PackedLayout, PrefixTreeLayout
from agentrl.learn.layouts.padded import PaddedLayout

LAYOUTS: Mapping[LayoutName, type[PaddedLayout | PackedLayout]] = {
    "padded": PaddedLayout,
    "packed": PackedLayout,
    "tree": PrefixTreeLayout,
}
"""Every layout, made of the most tokens of one forward pass and of what cuts up images."""
