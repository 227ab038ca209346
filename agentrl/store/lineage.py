"""Groups that a checkpoint has trained, when a run was killed and resumed many times.

Records are numbered in the order they were written. A checkpoint names its position: how many
records there were when it was made. A run resumed from it starts a new line at that position, and
what was recorded between the position and the resumption happened to weights that are gone:

    records   0 ---- 40 ====== 60 ---- 90       checkpoint at 40, killed and resumed at 60,
                     ^ position ^ resumed       next checkpoint at 90: its line is 0-40 and 60-90

A group is trained, as far as a checkpoint goes, if its mark lies on the checkpoint's line.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResumptionMark:
    """The record that starts a new line."""

    sequence: int
    position: int
    """Position of the checkpoint it went on from; 0 without one. Never above `sequence`."""


@dataclass(frozen=True, slots=True)
class TrainedMark:
    """A record says that a group was trained."""

    sequence: int
    group: int
    step: int


def line_to(position: int, resumptions: Iterable[ResumptionMark]) -> tuple[range, ...]:
    """Return the stretches of record numbers that led to `position`, newest first."""
    stretches: list[range] = []
    end = position
    for resumption in sorted(resumptions, key=lambda r: r.sequence, reverse=True):
        if resumption.sequence < end:
            stretches.append(range(resumption.sequence, end))
            end = resumption.position
    return (*stretches, range(end))


def find_trained(
    position: int, marks: Iterable[TrainedMark], resumptions: Iterable[ResumptionMark]
) -> dict[int, int]:
    """Return the groups whose training is in the weights of a checkpoint, and at which step.

    Everything else that is complete has yet to be trained; so every group is trained exactly once
    on the way to any checkpoint.
    """
    line = line_to(position, resumptions)
    return {
        mark.group: mark.step for mark in marks if any(mark.sequence in stretch for stretch in line)
    }
