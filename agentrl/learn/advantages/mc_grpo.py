"""MC-GRPO: the median for a baseline, which one outlier of a small group does not move."""

from collections.abc import Sequence

import numpy as np

from agentrl.config.learning.advantage import McGrpoAdvantage
from agentrl.learn.advantage import bind_per_trajectory
from agentrl.learn.method import LearnMethod


def mc_grpo(
    rewards: Sequence[float],
    *,
    epsilon: float = 1e-3,
    floor: float = 0.1,
    limit: float | None = 5.0,
) -> tuple[float, ...]:
    """Return (R - median) / max(MAD + epsilon, floor), cut to +-limit.

    MAD is the median of |R - median|. The paper has no floor and no limit: with binary rewards its
    MAD is 0 and minorities get +-1000. Of an even group the lower median is taken, so that the
    baseline is always somebody's reward. That trajectory, the pivot, has an advantage of 0; with
    the selection `pivot` it is in no denominator. Draw an odd number of trajectories.
    Source: arXiv 2601.22582.
    """
    if not len(rewards):
        return ()
    values = np.asarray(rewards, dtype=np.float64)
    centred = values - lower_median(values)
    scaled = centred / max(lower_median(np.abs(centred)) + epsilon, floor)
    return tuple(float(x) for x in (scaled if limit is None else scaled.clip(-limit, limit)))


def lower_median(values: Sequence[float] | np.ndarray) -> float:
    """Return the median; of an even number the lower of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])


METHOD = LearnMethod(
    McGrpoAdvantage,
    bind_per_trajectory(mc_grpo),
    "arXiv 2601.22582, with a floor and a limit of our own",
)
