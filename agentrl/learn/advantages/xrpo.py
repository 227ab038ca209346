"""XRPO's novelty sharpening: GRPO, with more for what is right and was unlikely."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np

from agentrl.config.learning.advantage import XrpoAdvantage
from agentrl.learn.advantage import AdvantageFunction, TokenAdvantages, spread_over_tokens
from agentrl.learn.advantages.grpo import score_of
from agentrl.learn.method import LearnMethod, Need
from agentrl.learn.sample import TrainingGroup, TrainingSample


def sharpen_credit(
    credit: Sequence[float],
    scores: Sequence[float | None],
    correct: Sequence[bool],
    *,
    bonus: float = 2.5,
    cap: float = 0.5,
) -> tuple[float, ...]:
    """Return A + min(max(bonus (1 - eta), 0), cap A) for correct trajectories with A > 0.

    eta_i = exp(s_i - mean of s) and s is the mean log-prob of a trajectory's tokens; one whose
    score is None is in no mean and keeps its A. Source: arXiv 2510.06672.
    """
    valid_scores = [score for score in scores if score is not None]
    mean = sum(valid_scores) / len(valid_scores) if valid_scores else 0.0

    def sharpen_one(advantage: float, score: float | None, is_correct: bool) -> float:
        # A negative advantage would make cap x A the smaller, and punish what was right.
        if score is None or not is_correct or advantage <= 0:
            return advantage
        novelty = 1.0 - math.exp(min(score - mean, 0.0))
        return advantage + min(bonus * novelty, cap * advantage)

    return tuple(sharpen_one(*each) for each in zip(credit, scores, correct, strict=True))


def score(sample: TrainingSample, *, logprobs: Literal["behaviour", "proximal"]) -> float | None:
    """Return the mean log-prob of the tokens that train, or None if none is known."""
    token_logprobs = sample.behaviour if logprobs == "behaviour" else sample.proximal
    if token_logprobs is None:
        return None
    finite_logprobs = token_logprobs[sample.mask & np.isfinite(token_logprobs)]
    return float(finite_logprobs.mean(dtype=np.float64)) if len(finite_logprobs) else None


def _bind(section: XrpoAdvantage) -> AdvantageFunction:
    base = score_of(section)
    sharpen = partial(sharpen_credit, bonus=section.bonus, cap=section.cap)
    likelihood = partial(score, logprobs=section.logprobs)
    correct_reward = section.correct_reward

    def advantages(groups: Sequence[TrainingGroup]) -> TokenAdvantages:
        token_advantages: TokenAdvantages = []
        for group in groups:
            scores = [likelihood(sample) for sample in group.samples]
            correct = [reward >= correct_reward for reward in group.rewards]
            credit = sharpen(base(group.rewards), scores, correct)
            token_advantages += spread_over_tokens(group, credit)
        return token_advantages

    return advantages


def _needs(section: XrpoAdvantage) -> frozenset[Need]:
    return frozenset({f"{section.logprobs} logprobs"})  # pyright: ignore[reportReturnType]


METHOD = LearnMethod(
    XrpoAdvantage, _bind, "arXiv 2510.06672, novelty as reported by others", _needs
)
