"""Proximal policies that are other weights than the trainer's: what the trainer asks of them."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from agentrl.config.learning.proximal import (
    AnyProximal,
    EwmaProximal,
    RevisedEwmaProximal,
    SnapshotProximal,
)
from agentrl.errors import ConfigError
from agentrl.learn.batch import Row
from agentrl.learn.evidence import Evidence
from agentrl.learn.ewma import StepAverage, VersionAverage
from agentrl.learn.method import Need
from agentrl.learn.snapshot import Snapshots

ELSEWHERE: frozenset[Need] = frozenset({"averaged logprobs", "past logprobs"})
"""What a method needs whose anchor is none of the policies the trainer has anyway."""


@runtime_checkable
class Anchor(Protocol):
    """Keeps weights beside the trainer's, and scores samples with them.

    A batch calls `of_batch`, then `of_update` and `updated` for every optimiser step, then
    `stepped`.
    """

    def of_batch(self, rows: Sequence[Row], *, version: int) -> list[Row]:
        """Return the rows of a batch with proximal log-probs, or as they are."""
        ...

    def of_update(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of an optimiser step with proximal log-probs, or as they are."""
        ...

    def updated(self) -> None:
        """Take note that an optimiser step has moved the weights."""
        ...

    def stepped(self, *, active_fraction: float) -> Mapping[str, float]:
        """Take note that a batch is done, in which so many tokens were neither clipped nor masked;
        return the metrics there are."""
        ...

    def forget(self, *, before: int) -> None:
        """Take note that no token older than this version will come."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; nothing, and the model's weights are all there is."""
        ...


def anchor_of(
    section: AnyProximal, evidence: Evidence, needs: frozenset[Need] = frozenset()
) -> Anchor | None:
    """Return what keeps the weights a section names; None where it needs no others.

    Raises `ConfigError` for a function of the user's that `needs` what only those sections keep.
    """
    match section:
        case EwmaProximal():
            return StepAverage(evidence, beta=section.beta, on_cpu=section.on_cpu)
        case RevisedEwmaProximal():
            return VersionAverage(
                evidence,
                window_versions=section.window_versions,
                reset_below=section.reset_below,
                on_cpu=section.on_cpu,
            )
        case SnapshotProximal():
            return Snapshots(evidence, versions=section.versions)
        case _:
            if found := sorted(needs & ELSEWHERE):
                raise ConfigError(
                    f"a method of learn needs {', '.join(found)}, and learn.proximal is "
                    f"{section.name}, which keeps none; choose ewma, revised_ewma or snapshot"
                )
            return None
