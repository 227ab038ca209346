"""Reward shaping: the contract of the slot, and its methods."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from agentrl.config.learning.shaping import FIRST_ERROR_TURN, FapoShaping, OverlongShaping
from agentrl.errors import LearnError
from agentrl.learn.group_reward import read_number
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample

ShapingFunction = Callable[[TrainingSample], float]
"""The reward shaping slot: a trajectory with its reward to the reward it gets instead. What the
environment paid turn by turn stays as it is, and the difference is the last turn's."""


def shape_rewards(
    groups: Sequence[TrainingGroup], functions: Sequence[ShapingFunction]
) -> tuple[TrainingGroup, ...]:
    """Return the groups with rewards that every function has changed, one after the other.

    Raises `LearnError` for a reward that is not finite.
    """
    if not functions:
        return tuple(groups)
    return tuple(
        replace(group, samples=tuple(_shape_sample(sample, functions) for sample in group.samples))
        for group in groups
    )


def _shape_sample(sample: TrainingSample, functions: Sequence[ShapingFunction]) -> TrainingSample:
    for function in functions:
        returned: object = function(sample)
        reward = read_number(returned)
        if not math.isfinite(reward):
            raise LearnError(
                f"task {sample.task_id!r} sample {sample.sample}: learn.reward_shaping turned the "
                f"reward {sample.reward} into {returned!r:.80}, but a reward must be a finite "
                "number; fix the function"
            )
        sample = replace(sample, reward=reward)
    return sample


def overlong(
    sample: TrainingSample,
    *,
    limit_tokens: int = 20480,
    buffer_tokens: int = 4096,
    penalty: float = 1.0,
    counts: Literal["sampled", "context"] = "sampled",
) -> float:
    """Return the reward less what its length costs.

    That is 0 up to limit - buffer tokens, rises evenly to `penalty` at the limit, and stays there.
    Sampled tokens count whether they are young enough to train or not.
    Source: Yu et al. 2025 (arXiv 2503.14476), equation 13.
    """
    length = int(sample.sampled.sum()) if counts == "sampled" else len(sample.token_ids)
    over = (length - (limit_tokens - buffer_tokens)) / buffer_tokens
    return sample.reward - penalty * min(1.0, max(0.0, over))


def fapo(
    sample: TrainingSample,
    *,
    component: str = FIRST_ERROR_TURN,
    right_above: float = 0.0,
    right: float = 1.0,
    wrong: float = -1.0,
    flaw: float = 1.0,
) -> float:
    """Return `wrong`, `right`, or `right` - `flaw` for what is right and has a wrong turn.

    The judge's verdict is the reward component of that name: the first wrong turn, negative for
    none. Without one a right trajectory is sound, so a judge that fails costs nobody anything.
    With flaw = 1 a flawed trajectory's advantage in its group is positive while flawed ones
    outnumber the sound ones, and negative after. Source: FAPO (arXiv 2510.22543) and its code.
    """
    if sample.reward <= right_above:
        return wrong
    return right - flaw if sample.components.get(component, -1.0) >= 0 else right


METHODS: tuple[LearnMethod[ShapingFunction], ...] = (
    LearnMethod(OverlongShaping, bind_knobs(overlong), "Yu et al. 2025, arXiv 2503.14476"),
    LearnMethod(FapoShaping, bind_knobs(fapo), "FAPO, arXiv 2510.22543; yyDing1/FAPO"),
)
