"""TreeRL: the value of each segment of a tree, and what it adds to that of the one before."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from agentrl.config.learning.advantage import TreeRlAdvantage
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.tree_shape import SharedPrefixes

Weighting = Literal["none", "sqrt", "uniform"]


def leave_one_out(rewards: Sequence[float]) -> Float[ndarray, " samples"]:
    """Return each of two or more rewards minus the mean of the others; equal ones give zeros."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.max() == values.min():
        return np.zeros(len(values))
    return (values - values.mean()) * (len(values) / (len(values) - 1))


def share_weights(shares: Int[ndarray, " segments"], weighting: Weighting) -> ndarray:
    """Return the weight of each segment in its trajectories, given the number that share it."""
    power = {"none": 0.0, "sqrt": 0.5, "uniform": 1.0}[weighting]
    return shares.astype(np.float64) ** -power


def tree_rl(
    groups: Sequence[TrainingGroup],
    *,
    global_term: bool = True,
    weighting: Weighting = "sqrt",
    weighted: Literal["reward", "value"] = "reward",
    centre: Literal["token", "none"] = "token",
    truncated: float | None = None,
    singleton: Literal["zero", "raw"] = "zero",
) -> TokenAdvantages:
    """Return w (V(s) + V(s) - V(parent of s)) on the tokens of segment s.

    V is the mean, over the trajectories that hold a segment, of their leave-one-out rewards, which
    makes it 0 at the root; `centre` then takes the mean over all trained tokens from it, a token
    that n trajectories share counting n times. The paper has w = 1 / sqrt(n); its code multiplies
    each V with the w of its own segment instead. Every trajectory that shares a segment trains it,
    so the weights of a segment add up to sqrt(n). `truncated` stands for the leave-one-out reward
    of a trajectory that a limit ended.
    Source: Hou et al. 2025 (TreeRL, arXiv 2506.11902), the equation of R(s); centring and
    `truncated` are those of its code.
    """
    advantages: TokenAdvantages = []
    for group in groups:
        if len(group.samples) == 1:
            raw = group.rewards[0] if singleton == "raw" else 0.0
            advantages.append(np.full(len(group.samples[0].token_ids), float(raw)))
            continue
        shape = SharedPrefixes.from_group(group)
        credit = leave_one_out(group.rewards)
        if truncated is not None:
            credit[[sample.truncated for sample in group.samples]] = truncated
        values = shape.means(credit.tolist())
        if centre == "token":
            values -= _token_mean(values, group, shape)
        advantages += shape.spread(
            _rewards(values, shape, weighting, weighted, global_term=global_term)
        )
    return advantages


def _rewards(
    values: Float[ndarray, " segments"],
    shape: SharedPrefixes,
    weighting: Weighting,
    weighted: Literal["reward", "value"],
    *,
    global_term: bool,
) -> Float[ndarray, " segments"]:
    weights = share_weights(shape.shares(), weighting)
    if weighted == "value":
        values = values * weights
    # Before the root there is nothing: it is worth as much as itself.
    parents = [i if s.parent is None else s.parent for i, s in enumerate(shape.segments)]
    gains = values - values[parents] + (values if global_term else 0.0)
    return gains if weighted == "value" else gains * weights


def _token_mean(
    values: Float[ndarray, " segments"], group: TrainingGroup, shape: SharedPrefixes
) -> float:
    tokens = shape.spread(values)
    trained = np.concatenate([x[s.mask] for x, s in zip(tokens, group.samples, strict=True)])
    return float(trained.mean()) if len(trained) else 0.0


METHOD = LearnMethod(TreeRlAdvantage, bind_knobs(tree_rl), "Hou et al. 2025, arXiv 2506.11902")
