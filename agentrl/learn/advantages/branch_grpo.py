"""BranchGRPO: a segment is compared with those of its task that are as deep as it is."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from agentrl.config.learning.advantage import BranchGrpoAdvantage
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.advantages.tree_rl import Weighting, share_weights
from agentrl.learn.method import LearnMethod, Need, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.tree_shape import SharedPrefixes

EQUAL = 1e-6
"""A smaller standard deviation is none."""


def depth_scores(
    values: Float[ndarray, " segments"],
    depths: Int[ndarray, " segments"],
    *,
    epsilon: float = 1e-8,
) -> Float[ndarray, " segments"]:
    """Return each value less the mean of its depth, over its unbiased deviation + epsilon.

    One value alone at its depth, and equal ones, give zero. Source: arXiv 2509.06040.
    """
    scores = np.zeros(len(values))
    for depth in np.unique(depths):
        mask = depths == depth
        if mask.sum() > 1 and (std := values[mask].std(ddof=1)) >= EQUAL:
            scores[mask] = (values[mask] - values[mask].mean()) / (std + epsilon)
    return scores


def probability_values(
    shape: SharedPrefixes,
    rewards: Sequence[float],
    logprobs: Sequence[float],
    *,
    temperature: float = 1.0,
) -> Float[ndarray, " segments"]:
    """Return per segment the mean of what follows it, weighed by the softmax of their log-probs.

    `logprobs` are per segment, the sum over its sampled tokens. A trajectory that ends where others
    go on is something that follows, with a log-prob of 0. Source: arXiv 2509.06040.
    """
    values = np.zeros(len(shape.segments))
    for index in reversed(range(len(shape.segments))):
        children = [i for i, s in enumerate(shape.segments) if s.parent == index]
        going_on = {sample for child in children for sample in shape.segments[child].samples}
        ended = [sample for sample in shape.segments[index].samples if sample not in going_on]
        after = [*(values[child] for child in children), *(rewards[sample] for sample in ended)]
        logs = np.array([*(logprobs[child] for child in children), *(0.0 for _ in ended)])
        odds = np.exp((logs - logs.max()) / temperature)
        values[index] = float(np.dot(odds, after) / odds.sum())
    return values


def branch_grpo(
    groups: Sequence[TrainingGroup],
    *,
    value: Literal["mean", "probability"] = "mean",
    temperature: float = 1.0,
    epsilon: float = 1e-8,
    weighting: Weighting = "uniform",
    clip: float | None = 5.0,
) -> TokenAdvantages:
    """Return the depth-wise advantage of each token's segment, in text trees.

    The tree is that of the task, so its root is the prompt and a group without branches gets what
    GRPO gives it. Depth is the number of branch points passed. A shared token is trained once per
    trajectory that holds it: `weighting` is what it weighs in each.
    Source: Li et al. 2025 (BranchGRPO, arXiv 2509.06040), for trees of diffusion steps; depth in
    branch points and the weights are ours.
    """
    advantages: TokenAdvantages = []
    for group in groups:
        shape = SharedPrefixes.from_group(group)
        if value == "mean":
            values = shape.means(group.rewards)
        else:
            logs = _logprobs(group.samples, shape)
            values = probability_values(shape, group.rewards, logs, temperature=temperature)
        depths = np.array([segment.depth for segment in shape.segments])
        scores = depth_scores(values, depths, epsilon=epsilon)
        if clip is not None:
            scores = scores.clip(-clip, clip)
        advantages += shape.spread(scores * share_weights(shape.shares(), weighting))
    return advantages


def _logprobs(samples: Sequence[TrainingSample], shape: SharedPrefixes) -> list[float]:
    """Return the log-prob of each segment; a token without a finite one counts as certain."""
    logprobs: list[float] = []
    for index, segment in enumerate(shape.segments):
        sample = samples[segment.samples[0]]
        token_logprobs = sample.behaviour[
            (shape.places[segment.samples[0]] == index) & sample.sampled
        ]
        logprobs.append(float(token_logprobs[np.isfinite(token_logprobs)].sum(dtype=np.float64)))
    return logprobs


def _needs(section: BranchGrpoAdvantage) -> frozenset[Need]:
    return frozenset({"behaviour logprobs"} if section.value == "probability" else ())


METHOD = LearnMethod(
    BranchGrpoAdvantage, bind_knobs(branch_grpo), "Li et al. 2025, arXiv 2509.06040", _needs
)
