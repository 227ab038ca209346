"""Limits on the length of turns and trajectories that grow where trajectories run into them.

A run begins with short limits. Whenever more than a share of a step's trajectories ran into those
of turns or of turn tokens, what is begun from then on has longer ones, up to the full limits.
Source: AgentMath (arXiv 2512.20745), as its abstract and reports describe it, which grows the
context too.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.events.kinds import GroupRequest
from agentrl.rollout.length_schedule import LengthCaps
from agentrl.trajectory import Leaf, Tree, Truncated, reward_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthGrowth:
    """Caps from `least` to `most`, `factor` times as long with each growth."""

    least: LengthCaps
    most: LengthCaps
    factor: float
    above: float
    """Share of the trajectories of a step that may be cut without growth."""

    def find_caps(self, growths: int) -> LengthCaps:
        """Return the caps after so many growths."""
        scale = self.factor**growths

        def grow(low: int, high: int) -> int:
            length = low * scale + 0.5
            return high if length >= high else math.floor(length)

        return LengthCaps(
            turn_tokens=grow(self.least.turn_tokens, self.most.turn_tokens),
            turns=grow(self.least.turns, self.most.turns),
        )

    def grows_after(self, cut: int, ended: int) -> bool:
        """Return whether the caps grow after a step in which `cut` of `ended` trajectories ran into
        them."""
        return ended > 0 and cut / ended > self.above


@dataclass(slots=True, kw_only=True)
class GrowingCaps:
    """The caps of a run, and how often they have grown. Owned by its training loop."""

    growth: LengthGrowth
    growths: int = 0

    @property
    def caps(self) -> LengthCaps:
        """Return the caps of what is begun now."""
        return self.growth.find_caps(self.growths)

    def on_step(self, groups: Iterable[tuple[GroupRequest | None, Tree]]) -> None:
        """Let the caps grow after a step, if too many of its trajectories ran into them.

        Failed ones count on neither side, nor do groups that were begun under shorter caps.
        """
        caps, cut, ended = self.caps, 0, 0
        limits = (caps.turn_tokens, caps.turns)
        for order, tree in groups:
            if order is None or (order.max_turn_tokens, order.max_turns) != limits:
                continue
            leaves = [leaf for leaf in tree.leaves if reward_of(leaf.outcome) is not None]
            ended += len(leaves)
            cut += sum(is_cut(tree, leaf, caps, most=self.growth.most) for leaf in leaves)
        if self.growth.grows_after(cut, ended):
            self.growths += 1


def is_cut(tree: Tree, leaf: Leaf, caps: LengthCaps, *, most: LengthCaps) -> bool:
    """Return whether a trajectory ran into a cap that is below `most`: it was truncated after all
    its turns, or has a turn of as many sampled tokens as it may have."""
    lengths: Counter[int] = Counter()
    for id in () if leaf.node is None else tree.path_ids(leaf.node):
        node = tree.node(id)
        if node.source == "sampled":
            lengths[node.turn] += len(node.token_ids)
    ran_out = isinstance(leaf.outcome, Truncated) and leaf.outcome.limit == "turns"
    if caps.turns < most.turns and ran_out and len(lengths) >= caps.turns:
        return True
    return caps.turn_tokens < most.turn_tokens and any(
        length >= caps.turn_tokens for length in lengths.values()
    )
