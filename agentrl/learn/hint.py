"""Hints: the contract of the slot, its methods, and samples after the prompt without their hint.

An environment may open with a hint and give the prompt without it too (`Observation.unhinted`). The
path of such a trajectory begins with the prompt without the hint, which the prompt with it
withdraws. So the other prompt is there as the tokens that the chat format renders, and training
after it is another place that the first sampled token follows: no token is made again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from agentrl.config.learning.hint import DistilledHint, RemovedHint
from agentrl.errors import LearnError
from agentrl.learn.contexts import rows_of
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class HintTraining:
    """Prompts after which a trajectory trains."""

    removes: bool = False
    """True if it trains after the prompt without its hint instead of the one with it."""
    coefficient: float = 0.0
    """Weight of a second loss, after the prompt without a hint."""


HintFunction = Callable[[TrainingSample], HintTraining]
"""The hint slot: a sample, as it was recorded, to the prompts after which it trains."""


def remove(sample: TrainingSample) -> HintTraining:
    """Return that a sample trains after the prompt without its hint.

    Its behaviour log-probs stay those of the prompt with the hint, so the correction is the
    truncated ratio of both policies.
    """
    return HintTraining(removes=True)


def distill(sample: TrainingSample, *, coefficient: float = 0.1) -> HintTraining:
    """Return that a sample trains after its own prompt and after the one without a hint.

    Source: tally0818/NudgeRL (arXiv 2605.15726), where samples without a hint have the second loss,
    too.
    """
    return HintTraining(coefficient=coefficient)


def apply_hints(
    groups: Sequence[TrainingGroup], function: HintFunction
) -> tuple[TrainingGroup, ...]:
    """Return the groups, each sample to be trained after the prompts that `function` says."""
    return tuple(
        replace(group, samples=tuple(_apply_hint(sample, function) for sample in group.samples))
        for group in groups
    )


def _apply_hint(sample: TrainingSample, function: HintFunction) -> TrainingSample:
    training = function(sample)
    if not isinstance(cast("object", training), HintTraining):
        raise LearnError(
            f"task {sample.task_id!r} sample {sample.sample}: learn.hint returned "
            f"{training!r:.80}; return a HintTraining"
        )
    if not np.isfinite(training.coefficient) or training.coefficient < 0:
        raise LearnError(
            f"task {sample.task_id!r} sample {sample.sample}: learn.hint gives it the coefficient "
            f"{training.coefficient}, but it is a finite number from 0 on; fix the function"
        )
    sample = replace(sample, hint_coefficient=float(training.coefficient))
    return remove_hint(sample) if training.removes else sample


def remove_hint(sample: TrainingSample) -> TrainingSample:
    """Return the sample after the prompt without its hint; itself, where it had none.

    Contexts that begin with the prompt begin with the other one; every token keeps its place.
    """
    said = int(sample.sampled.argmax())
    first, *others = sample.jumps or ((0, -1),)
    begin, before = first
    if before != -1 or not 0 < begin < said:
        return sample
    end = begin - 1
    jumps = ((place, end if after == said - 1 else after) for place, after in others)
    return replace(sample, jumps=((said, end), *jumps), other_prompt=True)


def make_unhinted_rows(row: CreditedSample) -> list[CreditedSample]:
    """Return the rows of the second loss of a credited sample, none where it has no credit.

    The sum of -advantage x log-prob over their tokens is the coefficient times the mean over the
    trajectory's tokens.
    """
    count, coefficient = row.sample.sampled_tokens, row.sample.hint_coefficient
    if row.is_idle:
        return []
    weights = 1.0 if row.sample.weights is None else row.sample.weights
    unhinted = CreditedSample(
        remove_hint(row.sample), row.advantages * weights * (coefficient / count)
    )
    return rows_of(unhinted)


METHODS: tuple[LearnMethod[HintFunction], ...] = (
    LearnMethod(RemovedHint, bind_knobs(remove), "seeding as in XRPO, arXiv 2510.06672; our form"),
    LearnMethod(DistilledHint, bind_knobs(distill), "NudgeRL, arXiv 2605.15726; tally0818/NudgeRL"),
)
