"""ARPO: GRPO's credit in a tree, each token's own (soft) or shared with its holders (hard)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from agentrl.config.learning.advantage import ArpoAdvantage
from agentrl.learn.advantage import AdvantageFunction, TokenAdvantages, spread_over_tokens
from agentrl.learn.advantages.grpo import grpo, score_of
from agentrl.learn.method import LearnMethod
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.tree_shape import SharedPrefixes


def arpo(
    groups: Sequence[TrainingGroup],
    *,
    score: Callable[[Sequence[float]], Sequence[float]] = grpo,
    shared: Literal["soft", "hard"] = "soft",
) -> TokenAdvantages:
    """Return A_i on every token of trajectory i, or mean of A_i over the trajectories that hold it.

    With `soft` a token that d trajectories hold is trained d times, once with each one's credit;
    with `hard` d times with the mean of them. So the gradients of the two, summed over the copies,
    are the same as long as the loss is linear in the credit, and differ where it clips.
    Source: Dong et al. 2025 (arXiv 2507.19849), section on advantage attribution; the code is soft.
    """
    return [
        tokens
        for group in groups
        for tokens in _credit(group, score(group.rewards), is_hard=shared == "hard")
    ]


def _credit(group: TrainingGroup, credit: Sequence[float], *, is_hard: bool) -> TokenAdvantages:
    if is_hard:
        shape = SharedPrefixes.from_group(group)
        return shape.spread(shape.means(credit))
    return spread_over_tokens(group, credit)


def _bind(section: ArpoAdvantage) -> AdvantageFunction:
    return partial(arpo, score=score_of(section), shared=section.shared)


METHOD = LearnMethod(ArpoAdvantage, _bind, "Dong et al. 2025, arXiv 2507.19849")
