"""AEPO: credit times a factor that grows with the entropy of the token."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import AepoAdvantage
from agentrl.learn.advantage import AdvantageFunction, TokenAdvantages
from agentrl.learn.advantages.arpo import arpo
from agentrl.learn.advantages.grpo import score_of
from agentrl.learn.method import LearnMethod, always
from agentrl.learn.sample import TrainingGroup, entropies_of


def entropy_factors(
    entropies: Float[ndarray, " tokens"], *, weight: float = 0.2
) -> Float[ndarray, " tokens"]:
    """Return max(0, 1 + weight x z), z the entropies less their mean over their unbiased deviation.

    `entropies`, in nats, are those of all tokens of the batch that train. A single token and equal
    entropies give 1.
    Source: Dong et al. 2025 (arXiv 2510.14545), entropy-aware advantage; there the statistics are
    those of a micro-batch and the factor may fall below 0.
    """
    # As in `grpo`: the rounded mean of equal numbers need not be that number.
    if not len(entropies) or entropies.max() == entropies.min():
        return np.ones(len(entropies))
    z = (entropies - entropies.mean()) / entropies.std(ddof=1)
    return np.maximum(0.0, 1.0 + weight * z)


def aepo(
    groups: Sequence[TrainingGroup], *, credit: AdvantageFunction = arpo, weight: float = 0.2
) -> TokenAdvantages:
    """Return `credit` times the factor of each token; tokens that do not train keep theirs."""
    samples = [sample for group in groups for sample in group.samples]
    entropies = [entropies_of(sample)[sample.mask] for sample in samples]
    factors = entropy_factors(np.concatenate([*entropies, np.empty(0)]), weight=weight)
    advantages: TokenAdvantages = []
    at = 0
    for tokens, sample in zip(credit(groups), samples, strict=True):
        factor = np.ones(len(tokens))
        factor[sample.mask] = factors[at : at + sample.sampled_tokens]
        at += sample.sampled_tokens
        advantages.append(tokens * factor)
    return advantages


def _bind(section: AepoAdvantage) -> AdvantageFunction:
    credit = partial(arpo, score=score_of(section), shared=section.shared)
    return partial(aepo, credit=credit, weight=section.weight)


METHOD = LearnMethod(
    AepoAdvantage, _bind, "Dong et al. 2025, arXiv 2510.14545", always("entropies")
)
