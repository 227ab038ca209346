"""Segment REINFORCE: one return for each run of tokens sampled without interruption."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import SegmentReinforceAdvantage
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.turns import discount, token_rewards
from agentrl.learn.whitening import whiten_credit


def segment_reinforce(
    groups: Sequence[TrainingGroup], *, gamma: float = 1.0, whiten: bool = False
) -> TokenAdvantages:
    """Return G_s = r_s + gamma G_(s+1) of its segment at every token; r_s is paid within it.

    There is no baseline unless it is whitened. Source: ROLL's agentic pipeline.
    """
    samples = [sample for group in groups for sample in group.samples]
    returns = [_returns(sample, gamma) for sample in samples]
    return whiten_credit(samples, returns) if whiten else returns


def _returns(sample: TrainingSample, gamma: float) -> Float[ndarray, " tokens"]:
    begins = sample.sampled & ~np.concatenate([[False], sample.sampled[:-1]])
    segments = np.cumsum(begins) - 1
    rewards = token_rewards(sample, paid="turns")
    paid = np.zeros(int(begins.sum()))
    np.add.at(paid, segments[sample.mask], rewards[sample.mask])
    returns = discount(paid, gamma)
    placed = np.zeros(len(sample.token_ids))
    placed[sample.sampled] = returns[segments[sample.sampled]]
    return placed


METHOD = LearnMethod(
    SegmentReinforceAdvantage, bind_knobs(segment_reinforce), "ROLL, alibaba/ROLL, agentic pipeline"
)
