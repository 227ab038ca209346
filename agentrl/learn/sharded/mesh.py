"""The ranks of one trainer as a process group of torch: Gloo between CPUs, NCCL between GPUs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from agentrl.config.learn import Precision
from agentrl.errors import LearnError
from agentrl.learn.context_parallel import ContextGroup
from agentrl.learn.ranks import TrainerRanks
from agentrl.learn.sequence_layout import SequenceLayout, TokenSequence
from agentrl.learn.sharded.balance import split
from agentrl.learn.sharded.gather import gather_weights
from agentrl.learn.sharded.packed_object import broadcast_object
from agentrl.learn.sharded.shard import shard
from agentrl.learn.sharded.shards import read_shards, write_shards
from agentrl.metrics.accumulator import MetricAccumulator

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class MeshRanks(TrainerRanks):
    """The ranks of a mesh of one dimension. `control` is a group of Gloo over the same ranks: what
    is no tensor goes over it. Ranks of one `context` divide lines, and have the same passes."""

    def __init__(
        self, mesh: DeviceMesh, control: dist.ProcessGroup, context: ContextGroup | None = None
    ) -> None:
        self._mesh = mesh
        self._control = control
        self.rank = mesh.get_local_rank()
        self.size = mesh.size()
        self.context = context
        self._context_size = 1 if context is None else context.size
        kind = mesh.device_type
        self.device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else None

    def plan(self, layout: SequenceLayout, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        plan = split(layout, sequences, ranks=self.size // self._context_size)
        return [list(indices) for indices in plan.passes[self.rank // self._context_size]]

    def shard(
        self, model: nn.Module, *, precision: Precision = "float32", offload: bool = False
    ) -> None:
        shard(cast(PreTrainedModel, model), self._mesh, precision=precision, offload=offload)

    def together(self, found: Mapping[K, V]) -> dict[K, V]:
        every: dict[K, V] = {}
        for part in self._gather_objects(_move_to_cpu(dict(found))):
            every |= part
        return every

    def total(self, value: Tensor) -> Tensor:
        # All ranks of a context computed the same.
        counts = self.rank % self._context_size == 0
        summed = value.clone() if counts else torch.zeros_like(value)
        dist.all_reduce(summed, group=self._mesh.get_group())
        return summed

    def merge_tally(self, tally: MetricAccumulator) -> MetricAccumulator:
        numbers = self._gather_objects(tally.numbers())
        return MetricAccumulator.from_totals(numbers[:: self._context_size])

    def add_gradients(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.total(gradient)

    def gather_weights(
        self,
        weights: Mapping[str, Tensor],
        types: Mapping[str, torch.dtype] | None = None,
        *,
        tied: Mapping[str, str] | None = None,
    ) -> Mapping[str, Tensor]:
        """Return weights in memory of the first rank's machine; see `gather.gather_weights`."""
        return gather_weights(weights, types or {}, tied=tied or {}, group=self._mesh.get_group())

    def write(self, folder: Path, name: str, state: Mapping[str, Tensor]) -> None:
        write_shards(folder / f"{name}.shards", state, self._control)

    def read(self, folder: Path, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shards = folder / f"{name}.shards"
        if shards.is_dir():
            return read_shards(shards, like, self._control)
        return super().read(folder, name, like)

    def check_same(self, digest: Callable[[], str], what: str) -> None:
        digests = self._gather_objects(digest())
        if len(set(digests)) > 1:
            raise LearnError(
                f"{what} is not the same on all {self.size} ranks: one of your methods draws "
                "random numbers or depends on the process; make it depend only on its arguments, "
                "or set learn.devices.count to 1"
            )

    def broadcast(self, value: T | None) -> T:
        """Return the first rank's value, whose arrays nobody may write into. A collective."""
        return broadcast_object(value, self._control)

    def _gather_objects(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._control)
        return values


def _move_to_cpu(value: Any) -> Any:
    """Return dicts and tuples with their tensors on the CPU: what is pickled keeps its device."""
    match value:
        case Tensor():
            return value.detach().cpu()
        case dict():
            return {k: _move_to_cpu(v) for k, v in cast("dict[Any, Any]", value).items()}
        case tuple():
            return tuple(_move_to_cpu(v) for v in cast("tuple[Any, ...]", value))
        case _:
            return value
