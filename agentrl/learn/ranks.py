"""Interface between the trainer and the ranks that train one model together, or a single one.

Every rank holds the same batch and decides the same: credit, selection and the order of updates
are computed everywhere. Forward and backward passes are what is split.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agentrl.config.learn import Precision
from agentrl.learn.context_parallel import ContextGroup
from agentrl.learn.dtensor import alike
from agentrl.learn.sequence_layout import ModelInputs, SequenceLayout, TokenSequence, no_tokens
from agentrl.metrics.accumulator import MetricAccumulator

K = TypeVar("K")
V = TypeVar("V")


class TrainerRanks:
    """The processes of one trainer, seen from one of them. This one has no others.

    What others do too is a collective: all ranks call it, in the same order.
    """

    rank = 0
    size = 1
    device: torch.device | None = None
    """Device that shards of the model are put on; None leaves it where it is."""

    context: ContextGroup | None = None
    """The ranks with which this one divides each line; None where it computes whole lines."""

    def plan(self, layout: SequenceLayout, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the sequence indices of each of this rank's passes.

        All ranks get the same number of passes, some of them perhaps over nothing, because the
        weights of a layer are collected from all ranks whenever one of them needs them.
        """
        return layout.plan(sequences)

    def passes(
        self, layout: SequenceLayout, sequences: Sequence[TokenSequence], *, device: torch.device
    ) -> Iterator[tuple[list[int], ModelInputs]]:
        """Yield this rank's passes: which sequences, and these as one block."""
        for indices in self.plan(layout, sequences):
            batch = [sequences[i] for i in indices]
            yield indices, layout.tokens(batch, device=device) if batch else no_tokens(device)

    def shard(
        self, model: nn.Module, *, precision: Precision = "float32", offload: bool = False
    ) -> None:
        """Keep a part of every weight only, in place, and compute in `precision`, over float32
        weights unless these lie below adapters. With `offload` the parts are in the host's memory.
        """

    def together(self, found: Mapping[K, V]) -> dict[K, V]:
        """Return the results of all ranks; no two have something for the same key. A collective."""
        return dict(found)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over ranks of a tensor. A collective."""
        return value

    def merge_tally(self, tally: MetricAccumulator) -> MetricAccumulator:
        """Return the merged tally of all ranks. A collective."""
        return tally

    def add_gradients(self, module: nn.Module) -> None:
        """Sum the gradients of a module that is whole on every rank. A collective."""

    def gather_weights(
        self,
        weights: Mapping[str, Tensor],
        types: Mapping[str, torch.dtype] | None = None,
        *,
        tied: Mapping[str, str] | None = None,
    ) -> Mapping[str, Tensor]:
        """Return weights by name, whole, on the first rank; nothing on the others. A collective.

        Those in `types` are rounded to these; `tied` are further names of some.
        """
        tensors = {n: v.to((types or {}).get(n, v.dtype)) for n, v in weights.items()}
        return tensors | {name: tensors[first] for name, first in (tied or {}).items()}

    def write(self, folder: Path, name: str, state: Mapping[str, Tensor]) -> None:
        """Write a state into a folder of a checkpoint. A collective."""
        whole = {key: value.contiguous() for key, value in state.items()}
        save_file(whole, folder / f"{name}.safetensors")

    def read(self, folder: Path, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that `write` wrote, by however many ranks. They are in the shards of
        `like` where it has something of that name. A collective."""
        file = folder / f"{name}.safetensors"
        if file.is_file():
            return {k: alike(v, like[k]) if k in like else v for k, v in load_file(file).items()}
        from agentrl.learn.sharded.shards import read_shards

        return read_shards(folder / f"{name}.shards", like, None)

    def check_same(self, digest: Callable[[], str], what: str) -> None:
        """Raise `LearnError` where ranks have different digests of `what`. A collective."""


ALONE = TrainerRanks()
"""The one rank of a trainer on one device."""
