"""Milestones, after SCRL: credit for the turns on the way to each of a task's milestones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import MilestonesAdvantage
from agentrl.errors import LearnError
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.turns import place_on_turns

REACHED = "milestone/"
"""With its number, the reward component that is 1 where a milestone was reached, and 0 else."""
SETTLED = "milestone_turn/"
"""With its number, the component with the turn, from 0, that settled whether it was."""


@dataclass(frozen=True, slots=True)
class MilestoneRecord:
    """Milestones of one trajectory, in order."""

    bits: tuple[float, ...]
    """1 where one was reached, and 0 else."""
    turns: tuple[int, ...]
    """Turn that settled each; fewer than bits where the trajectory ended before."""


def compare_milestones(
    bits: Float[ndarray, "trajectories milestones"],
    *,
    deviation: Literal["population", "unbiased"] = "population",
) -> Float[ndarray, "trajectories milestones"]:
    """Return (R^j - mean) / std by milestone j over the trajectories, 0 where all are equal.

    R^j is the product of the bits up to j: who missed a milestone has reached none after it.
    Source: SCRL (arXiv 2605.22074).
    """
    reached = np.cumprod(bits, axis=1)
    advantages = np.zeros(bits.shape)
    for column, values in enumerate(reached.T):
        # As in `grpo`: the rounded mean of equal numbers need not be that number.
        if len(values) and values.max() != values.min():
            scale = values.std(ddof=0 if deviation == "population" else 1)
            advantages[:, column] = (values - values.mean()) / scale
    return advantages


def milestones(
    groups: Sequence[TrainingGroup], *, deviation: Literal["population", "unbiased"] = "population"
) -> TokenAdvantages:
    """Return the advantage of a milestone at the turns on the way to it, 0 after the last one.

    Those are the turns after the one that settled the milestone before, up to the one that settles
    it; where none did, all that are left. Of SCRL's group half plays the plain task for GRPO's
    advantage, and its spans are parts of one text; here all play the curriculum, in turns.
    """
    advantages: TokenAdvantages = []
    for group in groups:
        count = max((_count(sample) for sample in group.samples), default=0)
        records = [read_milestones(sample, count) for sample in group.samples]
        table = np.array([record.bits for record in records]).reshape(len(records), count)
        credit = compare_milestones(table, deviation=deviation)
        advantages += [
            place_on_turns(sample, spread_over_spans(record, row, sample))
            for sample, record, row in zip(group.samples, records, credit, strict=True)
        ]
    return advantages


def spread_over_spans(
    record: MilestoneRecord, credit: Float[ndarray, " milestones"], sample: TrainingSample
) -> Float[ndarray, " turns"]:
    """Return by turn the credit of the milestone it was on the way to."""
    last = int(sample.turns[sample.sampled].max(initial=0))
    values = np.zeros(last + 1)
    begin = 0
    for end, value in zip((*record.turns, last), credit, strict=False):
        values[begin : end + 1] = value
        begin = end + 1
    return values


def read_milestones(sample: TrainingSample, count: int) -> MilestoneRecord:
    """Return the record of `count` milestones that the environment reported.

    One that it did not mention was not reached. Raises `LearnError` for what contradicts itself.
    """
    components = sample.components
    last = int(sample.turns[sample.sampled].max(initial=0))
    bits: list[float] = []
    turns: list[int] = []
    for number in range(1, count + 1):
        bit, turn = components.get(f"{REACHED}{number}"), components.get(f"{SETTLED}{number}")
        if bit not in (None, 0.0, 1.0):
            raise _contradiction(sample, f"{REACHED}{number} is {bit}, but it is 1.0 or 0.0")
        bits.append(bit or 0.0)
        if turn is None:
            if bit:
                raise _contradiction(
                    sample, f"{REACHED}{number} is 1.0, but {SETTLED}{number}, its turn, is missing"
                )
            continue
        least = turns[-1] if turns else 0
        if len(turns) != number - 1:
            raise _contradiction(
                sample, f"{SETTLED}{number} is {turn}, but {SETTLED}{number - 1} is missing"
            )
        if not float(turn).is_integer() or not least <= turn <= last:
            raise _contradiction(
                sample,
                f"{SETTLED}{number} is {turn}, but it is a turn from {least}, where the one before "
                f"was settled, to {last}",
            )
        turns.append(int(turn))
    return MilestoneRecord(tuple(bits), tuple(turns))


def _count(sample: TrainingSample) -> int:
    numbers = [name.removeprefix(REACHED) for name in sample.components if REACHED in name]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _contradiction(sample: TrainingSample, fault: str) -> LearnError:
    return LearnError(
        f"task {sample.task_id!r} sample {sample.sample}: {fault}; fix the environment's "
        "reward_components"
    )


METHOD = LearnMethod(MilestonesAdvantage, bind_knobs(milestones), "after SCRL, arXiv 2605.22074")
