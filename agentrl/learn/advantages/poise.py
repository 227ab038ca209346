"""POISE: rewards compared with predictions from the group's other trajectories."""

from collections.abc import Sequence

import numpy as np

from agentrl.config.learning.advantage import PoiseAdvantage
from agentrl.errors import LearnError
from agentrl.learn.advantage import TokenAdvantages, spread_over_tokens
from agentrl.learn.method import LearnMethod, always
from agentrl.learn.sample import TrainingGroup, TrainingSample


def poise(groups: Sequence[TrainingGroup]) -> TokenAdvantages:
    """Return R - b at every token of a trajectory, where b is the sample's `baseline`.

    Advantages are not divided by a deviation. Source: arXiv 2605.07579.
    """
    return [
        credit
        for group in groups
        for credit in spread_over_tokens(
            group, [s.reward - _get_baseline(s) for s in group.samples]
        )
    ]


def cross_predictions(predictions: Sequence[float | None], *, alone: float) -> tuple[float, ...]:
    """Return the baseline of each trajectory of a group: the mean of the predictions made from the
    others, or `alone` where there is none.

    The paper has groups of two. A baseline depends neither on the trajectory's own reward nor on
    its own tokens, so that it does not bias the gradient.
    """
    return tuple(
        _mean([x for j, x in enumerate(predictions) if j != i and x is not None], empty=alone)
        for i in range(len(predictions))
    )


def cross_rewards(rewards: Sequence[float]) -> tuple[float | None, ...]:
    """Return the target of the regression at each trajectory of a group: the mean reward of the
    others, or None where there is none."""
    values = np.asarray(rewards, dtype=np.float64)
    # Not the total less the own one: a large reward of its own would leave its rounding error.
    others = [np.delete(values, i) for i in range(len(values))]
    return tuple(float(each.mean()) if len(each) else None for each in others)


def _mean(values: Sequence[float], *, empty: float) -> float:
    return float(np.mean(values)) if values else empty


def _get_baseline(sample: TrainingSample) -> float:
    if sample.baseline is None:
        raise LearnError(
            f"task {sample.task_id!r} sample {sample.sample} has no baseline, which POISE "
            "requires; set learn.advantage.name: poise, whose regression makes it"
        )
    return sample.baseline


METHOD = LearnMethod(
    PoiseAdvantage, lambda section: poise, "after POISE, arXiv 2605.07579", always("entropies")
)
