"""Contract of the reward shaping slot: the reward from which credit is computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl.errors import LearnError
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
        reward = float(function(sample))
        if not abs(reward) < float("inf"):
            raise LearnError(
                f"task {sample.task_id!r} sample {sample.sample}: learn.reward_shaping turned the "
                f"reward {sample.reward} into {reward}, but a reward must be a finite number; fix "
                "the function"
            )
        sample = replace(sample, reward=reward)
    return sample
