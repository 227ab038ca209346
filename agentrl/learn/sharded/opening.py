"""From a config to the trainer on several devices, wherever their processes come from."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from agentrl import wiring
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.launch import Launch
from agentrl.learn.sharded.lead import LeadingTrainer
from agentrl.learn.sharded.link import Link
from agentrl.learn.sharded.mesh import MeshRanks
from agentrl.learn.sharded.processes import Processes
from agentrl.learn.sharded.setup import Setup, device_of, join, plain_config
from agentrl.learn.sharded.torchrun import Broadcast, announce, meeting_point

if TYPE_CHECKING:
    from agentrl.first_policy import Policy

HERE = "127.0.0.1"


def leading_trainer(config: RunConfig, policy: "Policy") -> LeadingTrainer:
    """Return the trainer of the leading rank, with the others started and following."""
    launch = Launch.of()
    return _of_processes(config, policy) if launch is None else _of_torchrun(config, policy, launch)


def _of_processes(config: RunConfig, policy: "Policy") -> LeadingTrainer:
    size, start_s = config.learn.devices.count, config.learn.devices.start_s
    device_of(config, size - 1)  # raises where there are too few
    device = device_of(config, 0)
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    setup = _setup(config, policy, size=size)
    setup = replace(setup, host=HERE, port=store.port)
    others = [setup.of(rank=rank, local_rank=rank) for rank in range(1, size)]
    link = Processes(others, start_s=start_s)
    try:
        ranks = join(config, store, rank=0, size=size, device=device)
        return _trainer(config, policy, ranks, link)
    except BaseException:
        link.close()
        raise


def _of_torchrun(config: RunConfig, policy: "Policy", launch: Launch) -> LeadingTrainer:
    count, size = config.learn.devices.count, launch.size
    if count not in (1, size):
        raise ConfigError(
            f"learn.devices.count is {count}, and torchrun has started {size} processes; leave "
            "the key out, or start as many"
        )
    device = device_of(config, launch.local_rank)
    store = meeting_point()
    announce(store, _setup(config, policy, size=size))
    ranks = join(config, store, rank=0, size=size, device=device)
    link = Broadcast(store, ranks)
    try:
        return _trainer(config, policy, ranks, link)
    except BaseException:
        link.close()
        raise


def _setup(config: RunConfig, policy: "Policy", *, size: int) -> Setup:
    plain = plain_config(config)
    return Setup(
        config=plain, policy=str(Path(policy.path).resolve()), rank=0, size=size, local_rank=0
    )


def _trainer(config: RunConfig, policy: "Policy", ranks: MeshRanks, link: Link) -> LeadingTrainer:
    settings = wiring.trainer_settings(config, policy.images)
    return LeadingTrainer(policy.model, config.learn, **settings, ranks=ranks, link=link)
