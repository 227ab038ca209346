"""Mean 0 and variance 1 over every token of a batch that trains."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.learn.sample import TrainingSample

EPSILON = 1e-8


def whiten_credit(
    samples: Sequence[TrainingSample], credit: Sequence[ndarray]
) -> list[Float[ndarray, " tokens"]]:
    """Return (credit - mean) / sqrt(variance + 1e-8) on the mask, and 0 off it.

    Mean and unbiased variance are those of all tokens of the mask, so a long trajectory counts
    more. Equal values, and a single one, become exactly 0.
    """
    pairs = list(zip(samples, credit, strict=True))
    values = np.concatenate([np.zeros(0), *(x[sample.mask] for sample, x in pairs)])
    if not len(values) or values.max() == values.min():
        return [np.zeros(len(x)) for x in credit]
    mean, scale = values.mean(), np.sqrt(values.var(ddof=1) + EPSILON)
    # What stands off the mask may be NaN, and must not reach the arithmetic.
    clean = (np.where(sample.mask, x, mean) for sample, x in pairs)
    return [(x - mean) / scale for x in clean]
