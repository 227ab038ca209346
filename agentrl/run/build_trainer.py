"""Trainer on several devices from a config, wherever their processes come from."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learn.sharded.mesh import MeshRanks
from agentrl.learn.sharded.processes import LocalRankLink
from agentrl.learn.sharded.rank_link import RankLauncher, RankLink, blame_ended_rank
from agentrl.learn.sharded.rank_spec import RankSpec, device_of, join, plain_config
from agentrl.learn.sharded.rank_zero import RankZeroTrainer
from agentrl.learn.sharded.torchrun import TorchrunRankLink, announce, meeting_point
from agentrl.run.build_engine import build_device_placement
from agentrl.runtime.torchrun import TorchrunLaunch
from agentrl.weight_sync.transfer_group import store_at

if TYPE_CHECKING:
    from agentrl.run.policy_model import PolicyModel


class LocalRankLauncher:
    """The other ranks are processes of this machine, each with a device of its own."""

    host = "127.0.0.1"

    def start(self, setup: RankSpec) -> LocalRankLink:
        """Start them; `ConfigError` where there are too few devices."""
        config = setup.run
        device_of(config, setup.size - 1)
        placement = build_device_placement(config)
        devices = placement.ranks[1:] if placement else ()
        others = [
            # With a GPU of its own a process sees that one alone, as its first.
            setup.for_rank(rank=rank, local_rank=0 if devices else rank)
            for rank in range(1, setup.size)
        ]
        return LocalRankLink(others, start_s=config.learn.devices.start_s, devices=devices)


def build_leading_trainer(
    config: RunConfig, policy: "PolicyModel", ground: RankLauncher | None = None
) -> RankZeroTrainer:
    """Return the trainer of the leading rank, with the others started and following.

    They are started on `ground`, or here; where torchrun has started them it is not asked.
    """
    launch = TorchrunLaunch.read()
    if launch is not None:
        return _join_torchrun(config, policy, launch)
    return _start_ranks(ground or LocalRankLauncher(), config, policy)


def _start_ranks(ground: RankLauncher, config: RunConfig, policy: "PolicyModel") -> RankZeroTrainer:
    size = config.learn.devices.count
    device = device_of(config, 0)
    host = ground.host
    store = store_at(host, deadline_s=config.learn.devices.start_s)
    setup = replace(_build_spec(config, policy, size=size), host=host, port=store.port)
    link = ground.start(setup)
    try:
        with blame_ended_rank(link):
            ranks = join(config, store, rank=0, size=size, device=device)
        return _build_trainer(config, policy, ranks, link)
    except BaseException:
        link.close()
        raise


def _join_torchrun(
    config: RunConfig, policy: "PolicyModel", launch: TorchrunLaunch
) -> RankZeroTrainer:
    count, size = config.learn.devices.count, launch.size
    if count not in (1, size):
        raise ConfigError(
            f"learn.devices.count is {count}, but torchrun started {size} processes; remove the "
            "key, or start that many processes"
        )
    device = device_of(config, launch.local_rank)
    store = meeting_point()
    announce(store, _build_spec(config, policy, size=size))
    ranks = join(config, store, rank=0, size=size, device=device)
    link = TorchrunRankLink(store, ranks)
    try:
        return _build_trainer(config, policy, ranks, link)
    except BaseException:
        link.close()
        raise


def _build_spec(config: RunConfig, policy: "PolicyModel", *, size: int) -> RankSpec:
    plain = plain_config(config)
    return RankSpec(
        config=plain, policy=str(Path(policy.path).resolve()), rank=0, size=size, local_rank=0
    )


def _build_trainer(
    config: RunConfig, policy: "PolicyModel", ranks: MeshRanks, link: RankLink
) -> RankZeroTrainer:
    return RankZeroTrainer.from_config(
        policy.model, config, images=policy.images, ranks=ranks, link=link
    )
