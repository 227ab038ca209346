"""Ranks for tests of the trainer on several devices: processes that do what they are told."""

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
from numpy import ndarray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.learn.dtensor import gather_tensor
from agentrl.learn.ranks import TrainerRanks
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.trainer import PolicyTrainer
from agentrl.store.token_credit import TokenCredit
from agentrl.trajectory import Tree

R = TypeVar("R")
DEADLINE_S = 240.0


class World:
    """Processes that can form groups of two ranks and more. Closing it ends them."""

    def __init__(self, connections: Sequence[Connection], sentinels: Sequence[int]) -> None:
        self._connections = connections
        self._sentinels = sentinels

    def run(self, work: Callable[..., R], *args: Any, size: int = 2, context: int = 1) -> list[R]:
        """Return what `work(ranks, *args)` returns on each of `size` ranks, of which `context`
        divide each line."""
        for connection in self._connections[:size]:
            connection.send(((size, context), work, args))
        found: list[Any] = []
        for connection in self._connections[:size]:
            ready = wait([connection, *self._sentinels], DEADLINE_S)
            assert connection in ready, f"a rank {'ended' if ready else 'has not answered'}"
            found.append(connection.recv())
        errors = [each for ok, each in found if not ok]
        assert not errors, "\n".join(errors)
        return [each for _, each in found]


@contextmanager
def world(most: int = 3) -> Generator[World]:
    """Open a world of so many processes."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pairs = [context.Pipe() for _ in range(most)]
        started = [
            context.Process(target=_serve, args=(rank, most, theirs, f"file://{folder}/store"))
            for rank, (_, theirs) in enumerate(pairs)
        ]
        try:
            for process in started:
                process.start()
            yield World([ours for ours, _ in pairs], [process.sentinel for process in started])
        finally:
            for ours, _ in pairs:
                ours.send(None)
            for process in started:
                if process.pid is not None:
                    process.join(30)
                    process.kill()
                    process.join()


def trained(
    ranks: TrainerRanks,
    model: PreTrainedModel,
    config: LearnSection,
    batches: Sequence[Sequence[Tree]],
    weights: Any = None,
) -> tuple[
    list[dict[str, Tensor]], Sequence[Mapping[str, float]], dict[str, Tensor], Sequence[TokenCredit]
]:
    """Return the gradients of every optimiser step, the metrics of every batch, the weights, and
    the credit of the last batch."""
    trainer = PolicyTrainer(model, config, seed=5, steps=len(batches), ranks=ranks)
    trainer.keeps_credit = True
    gradients: list[dict[str, Tensor]] = []
    update = trainer.optimizer.update

    def noted(*, step: int = 0) -> Tensor:
        named = trainer.optimizer.named_parameters()
        gradients.append(
            {n: gather_tensor(p.grad).clone() for n, p in named.items() if p.grad is not None}
        )
        return update(step=step)

    trainer.optimizer.update = noted  # pyright: ignore[reportAttributeAccessIssue]
    metrics = [trainer.step(batch, weights=weights) for batch in batches]
    found = {n: gather_tensor(p).clone() for n, p in trainer.optimizer.weights().items()}
    return gradients, metrics, found, trainer.credits


def differs(groups: Sequence[TrainingGroup]) -> list[ndarray]:
    """Return an advantage that depends on the process."""
    return [torch.rand(len(s.token_ids)).double().numpy() for g in groups for s in g.samples]


def _serve(rank: int, most: int, connection: Connection, store: str) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from agentrl.learn.context_parallel import ContextGroup
    from agentrl.learn.sharded.mesh import MeshRanks

    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    torch.set_num_threads(1)
    timeout = timedelta(seconds=DEADLINE_S)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=most, timeout=timeout)
    known: dict[tuple[int, int], TrainerRanks] = {(1, 1): TrainerRanks()}
    wholes: dict[int, tuple[DeviceMesh, dist.ProcessGroup]] = {}
    for size in range(2, most + 1):
        group = dist.new_group(list(range(size)), timeout=timeout)
        if isinstance(group, dist.ProcessGroup):
            mesh = DeviceMesh.from_group(group, "cpu", mesh=torch.arange(size))
            wholes[size] = mesh, group
            known[size, 1] = MeshRanks(mesh, group)
    for context in range(2, most + 1):
        for first in range(0, most - context + 1, context):
            line = dist.new_group(list(range(first, first + context)), timeout=timeout)
            if not isinstance(line, dist.ProcessGroup):
                continue
            for size in range(first + context, most + 1, context):
                ranks = ContextGroup(line, line.rank(), context)
                known[size, context] = MeshRanks(*wholes[size], ranks)
    while (task := connection.recv()) is not None:
        which, work, args = task
        try:
            connection.send((True, work(known[which], *args)))
        except BaseException:  # noqa: BLE001 - shown where it was asked for
            connection.send((False, traceback.format_exc()))
    dist.destroy_process_group()
