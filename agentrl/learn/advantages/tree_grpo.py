"""Tree-GRPO: credit of a trajectory within its task, within its tree, and their combinations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from agentrl.config.learning.advantage import TreeGrpoAdvantage
from agentrl.learn.advantage import AdvantageFunction, TokenAdvantages, spread_over_tokens
from agentrl.learn.advantages.grpo import grpo, score_of
from agentrl.learn.method import LearnMethod
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.tree_shape import SharedPrefixes

Score = Callable[[Sequence[float]], Sequence[float]]


def tree_grpo(
    rewards: Sequence[float],
    trees: Sequence[Sequence[int]],
    *,
    score: Score = grpo,
    variant: Literal["tree", "tree_inner", "tree_2norm"] = "tree",
) -> tuple[float, ...]:
    """Return inter + intra; inter alone scores all rewards of a task, intra those of each tree.

    `trees` are the indices in `rewards` of each tree. `tree_inner` is intra, and `tree_2norm` is
    intra of inter, which differs from it in singleton trees and by epsilon.
    Source: Ji et al. 2025 (arXiv 2509.21240), equations of the intra- and inter-tree advantage; the
    variants are those of its code.
    """
    inter = score(rewards)
    if variant == "tree":
        intra = _score_within_trees(rewards, trees, score)
        return tuple(a + b for a, b in zip(inter, intra, strict=True))
    return _score_within_trees(inter if variant == "tree_2norm" else rewards, trees, score)


def _score_within_trees(
    values: Sequence[float], trees: Sequence[Sequence[int]], score: Score
) -> tuple[float, ...]:
    scores = [0.0] * len(values)
    for tree in trees:
        for index, value in zip(tree, score([values[i] for i in tree]), strict=True):
            scores[index] = value
    return tuple(scores)


def _bind(section: TreeGrpoAdvantage) -> AdvantageFunction:
    credit = partial(tree_grpo, score=score_of(section), variant=section.variant)

    def advantages(groups: Sequence[TrainingGroup]) -> TokenAdvantages:
        token_advantages: TokenAdvantages = []
        for group in groups:
            members = SharedPrefixes.from_group(group).members()
            token_advantages += spread_over_tokens(group, credit(group.rewards, members))
        return token_advantages

    return advantages


METHOD = LearnMethod(TreeGrpoAdvantage, _bind, "Ji et al. 2025, arXiv 2509.21240")
