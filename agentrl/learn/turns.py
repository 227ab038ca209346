"""The turns of a sample: what each was paid, and where on its tokens a number per turn stands."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from agentrl.learn.sample import TrainingSample

Paid = Literal["turns", "end"]
"""Time at which a reward counts as earned: turn by turn as it was paid, or all at the end."""


def spoken_turns(sample: TrainingSample) -> Int[ndarray, " spoken"]:
    """Return the turns in which the policy sampled something, in order."""
    return np.unique(sample.spans["turn"][sample.spans["sampled"]])


def turn_rewards(sample: TrainingSample) -> Float[ndarray, " turns"]:
    """Return the reward of each turn, from turn 0 to the last one that was spoken or paid.

    What the reward holds beyond what was paid turn by turn is added to the last turn: all of it,
    where the environment pays at the end.
    """
    spoken = int(sample.turns[sample.sampled].max(initial=0)) + 1
    paid = np.zeros(max(spoken, len(sample.turn_rewards)))
    paid[: len(sample.turn_rewards)] = sample.turn_rewards
    # Summed as the episode sums: the rest is then exactly zero, not a rounding error.
    paid[-1] += sample.reward - math.fsum(sample.turn_rewards)
    return paid


def token_rewards(sample: TrainingSample, *, paid: Paid) -> Float[ndarray, " tokens"]:
    """Return rewards at tokens that train: each at the last of them before it was paid.

    What was paid before any token that trains is nobody's merit, and left out.
    """
    rewards = np.zeros(len(sample.token_ids))
    trains = np.flatnonzero(sample.mask)
    if not len(trains):
        return rewards
    if paid == "end":
        rewards[trains[-1]] = sample.reward
        return rewards
    turns = sample.turns[trains]
    for turn, reward in enumerate(turn_rewards(sample)):
        # Turns never fall along a sequence, so those up to this one end at one place.
        count = int(np.searchsorted(turns, turn, side="right"))
        if count:
            rewards[trains[count - 1]] += reward
    return rewards


def place_on_turns(
    sample: TrainingSample, values: Float[ndarray, " turns"]
) -> Float[ndarray, " tokens"]:
    """Return the value of its turn at every sampled token, 0 elsewhere."""
    turns = np.minimum(sample.turns, len(values) - 1)
    return np.where(sample.sampled, values[turns], 0.0)


def place_on_mask(
    sample: TrainingSample, values: Float[ndarray, " trained"] | Sequence[float]
) -> Float[ndarray, " tokens"]:
    """Return the values at the tokens that train, in their order, and 0 elsewhere."""
    placed = np.zeros(len(sample.token_ids))
    placed[sample.mask] = values
    return placed


def discount(values: Float[ndarray, " steps"], decay: float) -> Float[ndarray, " steps"]:
    """Return at each step the sum of decay^distance x value over the steps from there on."""
    sums = np.zeros(len(values))
    carried = 0.0
    for step in range(len(values) - 1, -1, -1):
        carried = float(values[step]) + decay * carried
        sums[step] = carried
    return sums
