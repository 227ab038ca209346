"""GAPO: the centre of where rewards are densest for a baseline."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from agentrl.config.learning.advantage import GapoAdvantage
from agentrl.learn.advantage import bind_per_trajectory
from agentrl.learn.method import LearnMethod


def gapo(
    rewards: Sequence[float],
    *,
    share: float = 0.5,
    centre: Literal["median", "mean"] = "median",
    normalise_std: bool = True,
    epsilon: float = 1e-6,
    singleton: Literal["zero", "raw"] = "zero",
) -> tuple[float, ...]:
    """Return (R - Q) / (sqrt(sum (R - Q)^2 / (G - 1)) + epsilon).

    Q is the centre of the shortest interval that holds ceil(share x G) of the rewards, the lowest
    of equally short ones. Advantages do not sum to zero: of binary rewards the majority gets 0.
    Source: arXiv 2510.21830.
    """
    if len(rewards) < 2:
        return tuple(float(reward) if singleton == "raw" else 0.0 for reward in rewards)
    values = np.asarray(rewards, dtype=np.float64)
    if values.max() == values.min():
        return (0.0,) * len(values)
    baseline = densest(values, share=share, centre=centre)
    centred = values - baseline
    spread = math.sqrt(float((centred**2).sum()) / (len(values) - 1))
    scale = spread + epsilon if normalise_std else 1.0
    return tuple(float(x) for x in centred / scale)


def densest(values: np.ndarray, *, share: float, centre: Literal["median", "mean"]) -> float:
    """Return the centre of the shortest interval that holds a share of the values."""
    ordered = np.sort(values)
    # 0.28 x 25 is 7.000000000000001, and needs seven.
    count = max(1, math.ceil(share * len(ordered) - 1e-9))
    lengths = ordered[count - 1 :] - ordered[: len(ordered) - count + 1]
    first = int(np.argmin(lengths))
    window = ordered[first : first + count]
    return float(np.median(window) if centre == "median" else window.mean())


METHOD = LearnMethod(GapoAdvantage, bind_per_trajectory(gapo), "arXiv 2510.21830")
