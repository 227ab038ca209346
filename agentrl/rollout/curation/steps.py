"""DART's high-entropy steps: of a group's turns, those the policy was least sure of train.

Source: arXiv 2509.23866 (a percentile of the group); its code has only a commented-out top share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
from numpy import bool_, float64
from numpy.typing import NDArray

from agentrl.trajectory import Leaf, Tree, reward_of

HAIR = 1e-9
"""Keeps what is whole or equal on paper from being decided by its last bit."""

StepKey = tuple[int, ...]
"""The sampled nodes of one turn; trajectories that share a turn share its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """The sampled tokens of one turn."""

    tokens: int
    entropy: float | None
    """Mean over its tokens, in nats; None when the engine did not report it for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighEntropySteps:
    """Selection of a group's steps that train, by entropy."""

    keep: float = 0.8
    how: Literal["percentile", "top"] = "percentile"
    """At or above the percentile 1 - keep, ties included (paper), or exactly the top share."""
    weight: Literal["mask", "renormalised"] = "mask"
    """Kept steps weigh 1, or all tokens over kept ones, so that a group weighs what it did."""

    def weights(self, steps: Sequence[TurnTokens]) -> NDArray[float64]:
        """Return a weight for each step of a group; 0 does not train.

        A step of unknown entropy trains and is in no percentile.
        """
        entropies = np.asarray([s.entropy for s in steps if s.entropy is not None], dtype=float64)
        mask = np.ones(len(steps), dtype=bool_)
        if len(entropies):
            places = [i for i, step in enumerate(steps) if step.entropy is not None]
            mask[places] = self._high(entropies)
        if self.weight == "mask":
            return mask.astype(float64)
        tokens = np.asarray([step.tokens for step in steps], dtype=float64)
        train_tokens = float(tokens[mask].sum())
        scale = float(tokens.sum()) / train_tokens if train_tokens else 1.0
        return np.where(mask, scale, 0.0)

    def _high(self, entropies: NDArray[float64]) -> NDArray[bool_]:
        if self.how == "percentile":
            return entropies >= threshold(entropies, keep=self.keep) - HAIR
        count = ceil(self.keep * len(entropies) - HAIR)
        high = np.zeros(len(entropies), dtype=bool_)
        # The earlier step stays where two are equal.
        high[np.argsort(-entropies, kind="stable")[:count]] = True
        return high


def threshold(entropies: NDArray[float64], *, keep: float) -> float:
    """Return the entropy that a step must reach: percentile 1 - keep, interpolated linearly."""
    return float(np.quantile(entropies, 1 - keep, method="linear"))


def steps_of(tree: Tree) -> dict[StepKey, TurnTokens]:
    """Return each step of a group once, also where trajectories share it; failed ones have none."""
    steps: dict[StepKey, TurnTokens] = {}
    for leaf in tree.leaves:
        if reward_of(leaf.outcome) is not None:
            steps |= {key: _step(tree, key) for key in keys_of(tree, leaf).values()}
    return steps


def keys_of(tree: Tree, leaf: Leaf) -> dict[int, StepKey]:
    """Return the step of each turn of a trajectory."""
    ids = () if leaf.node is None else tree.path_ids(leaf.node)
    turns: dict[int, StepKey] = {}
    for node in ids:
        if tree.nodes[node].source == "sampled":
            turn = tree.nodes[node].turn
            turns[turn] = (*turns.get(turn, ()), node)
    return turns


def _step(tree: Tree, key: StepKey) -> TurnTokens:
    nodes = [tree.nodes[node] for node in key]
    tokens = sum(len(node.token_ids) for node in nodes)
    entropies = [x for node in nodes for x in node.entropies]
    is_complete = tokens > 0 and len(entropies) == tokens
    return TurnTokens(tokens=tokens, entropy=float(np.mean(entropies)) if is_complete else None)


def turn_weights(tree: Tree, rule: HighEntropySteps) -> dict[int, dict[int, float]]:
    """Return the weight of every turn of every trajectory with a reward: by sample, then turn."""
    steps = steps_of(tree)
    weights = dict(zip(steps, map(float, rule.weights(tuple(steps.values()))), strict=True))
    return {
        leaf.sample: {turn: weights[key] for turn, key in keys_of(tree, leaf).items()}
        for leaf in tree.leaves
        if reward_of(leaf.outcome) is not None
    }


def compute_kept_share(weights: Sequence[Mapping[int, Mapping[int, float]]]) -> float:
    """Return the share of turns, over all trajectories, that train; 1 without any turn."""
    flat_weights = [
        weight for tree in weights for turns in tree.values() for weight in turns.values()
    ]
    return sum(weight > 0 for weight in flat_weights) / len(flat_weights) if flat_weights else 1.0
