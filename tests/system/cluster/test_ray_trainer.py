"""A trainer whose other ranks are actors of Ray, for real: the same weights, and no orphans.

A cluster takes seconds to start, so that a test here does several things with one.

Seen caught: an actor that takes the GPU of its rank instead of its first, a device that another
machine understands differently, GPUs for ranks of a trainer on CPUs.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.cluster.env_worker import RemoteFailure
from agentrl.cluster.interface import VARIABLE, interface_of, listen_at
from agentrl.cluster.trainer.host import RankHost
from agentrl.cluster.trainer.ranks import RayRankLauncher, RayRanks, find_address, followers
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, plain_config
from agentrl.learn.sharded.rank_zero import RankZeroTrainer
from agentrl.learn.trainer import PolicyTrainer
from agentrl.metrics.writer import read_metrics
from agentrl.run import train
from agentrl.run.build_trainer import build_leading_trainer
from agentrl.run.policy_model import PolicyModel
from tests.support.learning import model_of, trees_of
from tests.support.sharded_runs import assert_gone, config_file

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(1200),
    # Ray's own: what it starts is ended by it, not by us.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
ON_RAY: dict[str, Any] = {
    "learn.devices.count": 2,
    "cluster.kind": "ray",
    "cluster.start_s": 1000.0,
    "cluster.trainer_cpus": 0.25,
    "cluster.worker_cpus": 0.25,
    "cluster.workers": 1,
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let other processes find what tests find."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    yield
    import ray

    ray.shutdown()


def config_of(folder: Path, **changes: Any) -> RunConfig:
    return load_config(config_file(folder), {**ON_RAY, **changes})


def opened(folder: Path, **changes: Any) -> tuple[RankZeroTrainer, list[int]]:
    """Return a trainer with actors around a small policy, and the ids of their processes."""
    config = config_of(folder, **changes)
    policy = folder / "policy"
    model = model_of()
    model.save_pretrained(policy)
    first = PolicyModel(policy, model, cast(Any, None), cast(Any, None))
    trainer = build_leading_trainer(config, first, RayRankLauncher(config.cluster))
    return trainer, cast(RayRanks, trainer._link).pids  # pyright: ignore[reportPrivateUsage]


def assert_near(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6, msg=name)


def rooms() -> list[str]:
    from ray.util import placement_group_table

    return [room["state"] for room in placement_group_table().values()]


@pytest.mark.nightly
def test_a_step_with_actors_and_what_is_said_when_one_dies(tmp_path: Path) -> None:
    import ray

    options: Any = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(address="local", num_cpus=1, **options)
    trainer, pids = opened(tmp_path, **{"learn.devices.count": 3})
    try:
        assert len({*pids, os.getpid()}) == 3
        assert os.environ[VARIABLE] == interface_of(find_address())
        alone = PolicyTrainer(
            model_of(), config_of(tmp_path).learn, seed=0, temperature=1.0, steps=2
        )
        for version in (0, 1):
            wanted = alone.step(trees_of(2, version=version))
            found = trainer.step(trees_of(2, version=version))
            assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4, abs=1e-6)
        assert_near(trainer.weights(), alone.weights())
        # Rank 1 sees its connections break before Ray sees that rank 2 is dead.
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(LearnError, match=rf"rank 2 of .*process {pids[1]} on .*--resume"):
            trainer.step(trees_of(2, version=2))
    finally:
        trainer.close()
        trainer.close()
    assert_gone(pids)
    assert VARIABLE not in os.environ
    assert {*rooms()} == {"REMOVED"}, "the room is given back"
    with pytest.raises(
        ConfigError, match=r"no room for 1 ranks of the trainer with 99 CPUs.*has 1"
    ):
        opened(tmp_path, **{"cluster.trainer_cpus": 99, "cluster.start_s": 2})
    assert ray.is_initialized(), "what was there before is left as it was"

    trainer, pids = opened(tmp_path)
    try:
        # A rank that fails alone ends, so that nobody waits for it, and what it said is told.
        trainer._link.tell(RankCommand("no such command"))  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(LearnError, match=r"(?s)rank 1 of .*KeyError: 'no such command'"):
            trainer.step(trees_of(2))
    finally:
        trainer.close()
    assert_gone(pids)


def test_a_run_with_actors_is_that_of_one_device(tmp_path: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    lines: list[list[dict[str, Any]]] = []
    for name, changes in (("alone", {}), ("actors", ON_RAY)):
        result = train.train(config_file(tmp_path), {**changes, "run.name": name})
        newest = result.folder / "checkpoints" / "step-000002"
        weights.append(AutoModelForCausalLM.from_pretrained(newest).state_dict())
        lines.append(read_metrics(result.folder))
    assert len(list((newest / "optimizer.shards").glob("*.distcp"))) == 2, "rank 1 took part"
    for one, two in zip(*lines, strict=True):
        for figure in ("reward/mean", "loss", "grad/norm", "tokens/trained"):
            assert two[figure] == pytest.approx(one[figure], rel=1e-3, abs=1e-6), figure
    assert_near(weights[1], weights[0])
    # One device goes on from what they have left.
    resumed = train.train(
        config_file(tmp_path), {"run.name": "actors", "run.steps": 3}, resume=True
    )
    assert [line["step"] for line in read_metrics(resumed.folder)] == [1, 2, 3]


@pytest.mark.nightly
def test_the_actors_end_with_a_killed_run(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; "
        "from tests.system.cluster.test_ray_trainer import opened; "
        "trainer, pids = opened(Path(sys.argv[1])); print(*pids, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=1000,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert_gone([int(pid) for pid in killed.stdout.split()])


def setup_of(folder: Path, **changes: Any) -> RankSpec:
    plain = plain_config(config_of(folder, **changes))
    return RankSpec(config=plain, policy=str(folder / "none"), rank=0, size=3, local_rank=0)


def test_gloo_listens_at_the_address_of_the_cluster_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with listen_at("127.0.0.1"):
        assert os.environ[VARIABLE] == "lo"
    with listen_at("203.0.113.9"):
        assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "ib0")
    with listen_at("127.0.0.1"):
        assert os.environ[VARIABLE] == "ib0"
    assert os.environ[VARIABLE] == "ib0"


def test_a_rank_without_the_policy_says_which_folder_all_have_to_see(tmp_path: Path) -> None:
    host = RankHost(setup_of(tmp_path), lambda: "10.0.0.7")
    said = host.load()
    assert isinstance(said, RemoteFailure)
    with pytest.raises(ConfigError, match=r"none does not exist on 10\.0\.0\.7.*run\.folder"):
        raise said.error()


def test_a_rank_that_has_not_joined_says_so(tmp_path: Path) -> None:
    host = RankHost(setup_of(tmp_path), lambda: "10.0.0.7")
    assert "when it has loaded" in (host.join() or "")
    assert "when it has joined" in (host.run(RankCommand("weights")) or "")


def test_all_ranks_are_on_the_kind_of_device_that_the_first_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = followers(setup_of(tmp_path), gpus=0)
    assert [(one.rank, one.local_rank, one.run.policy.device) for one in others] == [
        (1, 0, "cpu"),
        (2, 0, "cpu"),
    ]
    with pytest.raises(ConfigError, match=r"computes on cpu.*remove it"):
        followers(setup_of(tmp_path), gpus=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    given = followers(setup_of(tmp_path, **{"policy.device": "auto"}), gpus=1)
    assert [one.run.policy.device for one in given] == ["cuda", "cuda"]
    with pytest.raises(ConfigError, match=r"computes on cuda.*set it to 1"):
        followers(setup_of(tmp_path, **{"policy.device": "cuda"}), gpus=0)
