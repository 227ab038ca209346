"""Setup of a rank, and its way to join the others."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.device_mesh import DeviceMesh

from agentrl.config.run import RunConfig
from agentrl.config.schema import plain
from agentrl.errors import ConfigError
from agentrl.learn.context_parallel import ContextGroup
from agentrl.learn.sharded.mesh import MeshRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_images, load_model
from agentrl.runtime.machine import device_of as named_device
from agentrl.runtime.machine import set_thread_count


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """One rank of a run's trainer. It travels to the process that is to be it."""

    config: Any
    """A `RunConfig` in plain values."""
    policy: str
    """The folder of the first policy, which all ranks see."""
    rank: int
    size: int
    local_rank: int
    """Index of its device on its machine."""
    host: str = ""
    port: int = 0
    """Port of the store at which they meet; the leading rank keeps it, if nobody else does."""

    def for_rank(self, *, rank: int, local_rank: int) -> "RankSpec":
        """Return the same for another rank."""
        return replace(self, rank=rank, local_rank=local_rank)

    @property
    def run(self) -> RunConfig:
        """Return the config."""
        return RunConfig.model_validate(self.config)

    def store(self) -> TCPStore:
        """Return the store; the leading rank's is the one the others reach."""
        timeout = datetime.timedelta(seconds=self.run.learn.devices.start_s)
        return TCPStore(self.host, self.port, timeout=timeout)


def plain_config(config: RunConfig) -> Any:
    """Return a config as `RankSpec` carries it."""
    return plain(config)


def device_of(config: RunConfig, local_rank: int) -> str:
    """Return the device of a rank; `ConfigError` where its machine has not so many."""
    kind = named_device(config.policy.device).partition(":")[0]
    if kind != "cuda":
        return kind
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"learn.devices.count needs {local_rank + 1} GPUs on this machine, but it has "
            f"{torch.cuda.device_count()}; lower it, or set policy.device: cpu"
        )
    return f"cuda:{local_rank}"


def join(config: RunConfig, store: Store, *, rank: int, size: int, device: str) -> MeshRanks:
    """Form the process group of all ranks, and return it as seen from this one.

    Raises `ConfigError` where this process has a process group already.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process already has a torch.distributed process group, but the trainer creates "
            "its own; destroy it first, or set learn.devices.count to 1"
        )
    section = config.learn.devices
    kind = device.partition(":")[0]
    backend = section.backend
    if backend == "auto":
        backend = "nccl" if kind == "cuda" else "gloo"
    if kind == "cuda":
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=section.step_s)
    dist.init_process_group(
        f"cpu:gloo,{kind}:{backend}" if kind != "cpu" else backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    control: Any = dist.new_group(backend="gloo", timeout=timeout)
    whole: Any = dist.group.WORLD
    mesh = DeviceMesh.from_group(whole, kind, mesh=torch.arange(size))
    return MeshRanks(mesh, control, form_context(section.context_parallel, timeout=timeout))


def form_context(size: int, *, timeout: datetime.timedelta | None = None) -> ContextGroup | None:
    """Return this rank's context of so many ranks, which are neighbours. A collective."""
    if size == 1:
        return None
    group: Any = dist.new_subgroups(size, timeout=timeout)[0]
    return ContextGroup(group, group.rank(), size)


def leave() -> None:
    """Give the process group up, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def load_rank(setup: RankSpec) -> Callable[[Store | None], PolicyTrainer]:
    """Load the model of a rank that follows; return what joins the others, by their store or that
    of `setup`, and returns its trainer."""
    config = setup.run
    set_thread_count(config.run.threads)
    device = device_of(config, setup.local_rank)
    # On the host, where it stays in its file until it is cut up.
    model = load_model(setup.policy, dtype=config.policy.dtype, device="cpu")
    images = load_images(setup.policy, model)

    def joins(store: Store | None) -> PolicyTrainer:
        met = store or setup.store()
        ranks = join(config, met, rank=setup.rank, size=setup.size, device=device)
        return PolicyTrainer.from_config(model, config, images=images, ranks=ranks)

    return joins


def follower(
    setup: RankSpec, ready: Callable[[], None], store: Store | None = None
) -> PolicyTrainer:
    """Return the trainer of a rank that follows; `ready` is called when it can join."""
    joins = load_rank(setup)
    ready()
    return joins(store)
