"""ECHO's shaping of an advantage: more of it where the policy was unsure."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import EchoAdvantage
from agentrl.learn.advantage import AdvantageFunction, TokenAdvantages, per_trajectory
from agentrl.learn.advantages.grpo import score_of
from agentrl.learn.method import LearnMethod, always
from agentrl.learn.sample import TrainingGroup, TrainingSample, entropies_of
from agentrl.learn.whitening import whiten_credit


def scale_credit(
    credit: Float[ndarray, " tokens"],
    signal: Float[ndarray, " tokens"],
    *,
    multiplier: float,
    limit: float,
) -> Float[ndarray, " tokens"]:
    """Return A (1 + multiplier S), the signal S cut to +-limit."""
    return credit * (1 + multiplier * np.clip(signal, -limit, limit))


def echo(
    groups: Sequence[TrainingGroup],
    *,
    credit: AdvantageFunction,
    multiplier: float = 0.1,
    entropy_weight: float = 1.0,
    doubt_weight: float = 1.0,
    limit: float = 2.0,
) -> TokenAdvantages:
    """Return `credit`, scaled by S = entropy_weight z(H) + doubt_weight z(1 - p).

    H is a token's entropy, p the probability with which it was sampled, and z whitens over the
    tokens of the batch that train. The paper's confidence is the mean probability of the five
    likeliest tokens; p is what its code takes for packed batches.
    Source: user683/ECHO (arXiv 2602.02150), advantage shaping without its additive term.
    """
    samples = [sample for group in groups for sample in group.samples]
    entropies = whiten_credit(samples, [entropies_of(sample) for sample in samples])
    doubts = whiten_credit(samples, _doubts(samples))
    return [
        scale_credit(
            tokens,
            entropy_weight * entropy + doubt_weight * doubt,
            multiplier=multiplier,
            limit=limit,
        )
        for tokens, entropy, doubt in zip(credit(groups), entropies, doubts, strict=True)
    ]


def _doubts(samples: Sequence[TrainingSample]) -> list[Float[ndarray, " tokens"]]:
    """Return 1 - p on the mask. Where the engine reported no number it is the batch's mean."""
    doubts: list[Float[ndarray, " tokens"]] = []
    for sample in samples:
        finite = sample.mask & np.isfinite(sample.behaviour)
        logprobs = np.where(finite, sample.behaviour, 0.0)
        doubts.append(np.where(finite, 1 - np.exp(np.minimum(logprobs, 0.0)), np.nan))
    values = np.concatenate([np.zeros(0), *doubts])
    values = values[np.isfinite(values)]
    middle = values.mean() if len(values) else 0.0
    return [np.where(np.isfinite(doubt), doubt, middle) for doubt in doubts]


def _bind(section: EchoAdvantage) -> AdvantageFunction:
    return partial(
        echo,
        credit=per_trajectory(score_of(section)),
        multiplier=section.multiplier,
        entropy_weight=section.entropy_weight,
        doubt_weight=section.doubt_weight,
        limit=section.limit,
    )


METHOD = LearnMethod(
    EchoAdvantage,
    _bind,
    "after ECHO, arXiv 2602.02150; user683/ECHO",
    always("behaviour logprobs", "entropies"),
)
