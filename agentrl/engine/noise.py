"""The noise a token is drawn with: a function of the request's seed and the token's position.

Counter-based, so there is no generator state to keep, restore or share between requests: a token
gets the same noise alone, in any batch, and after an interruption. The hash is splitmix64 (Steele,
Lea, Flood 2014).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def stream(seed: int) -> int:
    """Return the 64-bit start of a seed's stream; neighbouring seeds start far apart."""
    state = (seed + _STEP) & _MASK
    for shift, factor in _MIX:
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return state ^ (state >> 31)


def uniforms(streams: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per pair of stream and position, with 53 random bits."""
    state = np.asarray(streams, np.uint64) + np.asarray(positions, np.uint64) * np.uint64(_STEP)
    for shift, factor in _MIX:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
