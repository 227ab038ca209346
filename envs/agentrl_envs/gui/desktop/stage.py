"""Stages that desktops can have before an episode asks for one, and those still to be set.

A stage is the part of a scene that depends on nothing but the scene: files and programs. Two tasks
whose scenes have the same ones (a calculator, the trajectories of a group) have the same stage.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from agentrl_envs.gui.world import DesktopScene


@dataclass(frozen=True, slots=True)
class DesktopStage:
    """Files by path, and the commands of programs, each in the order in which they come."""

    files: tuple[tuple[str, bytes], ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def from_scene(cls, scene: DesktopScene) -> Self:
        """Return the stage of a scene."""
        return cls(tuple(scene.files.items()), tuple(tuple(command) for command in scene.programs))


BARE = DesktopStage()
"""Nothing: any desktop that is ready has it."""


def find_missing(
    expected: Sequence[DesktopStage], there: Iterable[DesktopStage]
) -> list[DesktopStage]:
    """Return the stages of `expected` that are not there yet, each as often as wanted, in order."""
    counts, stages = Counter(there), list[DesktopStage]()
    for stage in expected:
        if counts[stage] > 0:
            counts[stage] -= 1
        elif stage != BARE:
            stages.append(stage)
    return stages


def find_unwanted(there: Sequence[DesktopStage], expected: Sequence[DesktopStage]) -> int | None:
    """Return the index of the first stage that nobody expects; None where all are expected."""
    over = Counter(there) - Counter(expected)
    return next((at for at, stage in enumerate(there) if over[stage] > 0), None)


def find_latest(there: Sequence[DesktopStage], expected: Sequence[DesktopStage]) -> int:
    """Return the index of the stage expected last, or not at all; `ValueError` for no stages."""

    def rank(at: int) -> int:
        return expected.index(there[at]) if there[at] in expected else len(expected)

    return max(range(len(there)), key=rank)
