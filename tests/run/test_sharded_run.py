"""A run whose trainer is several processes: one config key, the same numbers, and no orphans.

Seen caught: a rank that wrote into a checkpoint after the first one had renamed it.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, LearnError
from agentrl.learn import sharded
from agentrl.learn.sharded.packed_object import MEMORY_NAME
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, plain_config
from agentrl.learn.sharded.rank_zero import RankZeroTrainer
from agentrl.learn.sharded.torchrun import SETUP, announce, await_setup
from agentrl.metrics.writer import read_metrics
from agentrl.run import train
from agentrl.run.build_trainer import build_leading_trainer
from agentrl.run.policy_model import PolicyModel
from agentrl.runtime.torchrun import TorchrunLaunch
from agentrl.weight_sync.transfer_group import store_at
from tests.support.learning import model_of, trees_of
from tests.support.sharded_runs import assert_gone, config_file, leading, opened

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "agentrl")


@pytest.mark.timeout(900)
def test_one_key_trains_on_two_devices(tmp_path: Path) -> None:
    found: dict[int, list[dict[str, Any]]] = {}
    for count in (1, 2):
        changes = {"learn.devices.count": count, "run.name": f"on-{count}"}
        result = train.train(config_file(tmp_path), changes)
        found[count] = read_metrics(result.folder)
    for one, two in zip(found[1], found[2], strict=True):
        for name in ("reward/mean", "loss", "grad/norm", "entropy", "tokens/trained"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
    # And back on one device, from what two have left.
    changes = {"learn.devices.count": 1, "run.name": "on-2", "run.steps": 3}
    resumed = train.train(config_file(tmp_path), changes, resume=True)
    assert [line["step"] for line in read_metrics(resumed.folder)] == [1, 2, 3]


def test_a_rank_that_dies_ends_the_run_by_name(tmp_path: Path) -> None:
    with leading(tmp_path) as (trainer, pids):
        trainer.step(trees_of(2))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(LearnError, match=r"rank 1 of the trainer, process \d+, .*SIGKILL"):
            trainer.step(trees_of(2, version=1))
    assert_gone(pids)


def mappings(pid: int) -> int:
    """Return how many arrays of a batch a process maps, and how many files of such it has."""
    count = Path(f"/proc/{pid}/maps").read_text().count(MEMORY_NAME)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
            count += MEMORY_NAME in str(link.readlink())
    return count


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def watched(trainer: RankZeroTrainer, pid: int, then: Callable[[], None]) -> None:
    """Do something once the other rank maps the batch it was given."""
    link: Any = trainer._link  # pyright: ignore[reportPrivateUsage]
    tell = link.tell

    def tell_and_watch(command: RankCommand) -> None:
        tell(command)
        wait_for(lambda: mappings(pid) > 0, "the other rank maps no batch")
        assert mappings(os.getpid()) == 0, "the first rank has no need of it any more"
        then()

    link.tell = tell_and_watch


def test_a_batch_in_memory_is_there_in_its_step_alone(tmp_path: Path) -> None:
    """Seen caught: the memory held by its sender; a command that the other rank kept."""
    with leading(tmp_path) as (trainer, pids):
        told: list[int] = []
        watched(trainer, pids[0], lambda: told.append(mappings(pids[0])))
        for version in range(2):
            trainer.step(trees_of(2, version=version))
            wait_for(lambda: mappings(pids[0]) == 0, "the other rank still maps the batch")
        # One file, mapped, and the mapping's own descriptor.
        assert told == [2, 2]
        assert mappings(os.getpid()) == 0


def test_a_batch_in_memory_goes_with_a_rank_that_dies_in_its_step(tmp_path: Path) -> None:
    with leading(tmp_path) as (trainer, pids):
        watched(trainer, pids[0], lambda: os.kill(pids[0], signal.SIGKILL))
        with pytest.raises(LearnError, match=r"rank 1 of the trainer, process \d+, .*SIGKILL"):
            trainer.step(trees_of(2))
        assert mappings(os.getpid()) == 0
    assert_gone(pids)


@pytest.mark.timeout(720)
@pytest.mark.nightly
def test_a_batch_in_memory_goes_with_a_run_that_is_killed_in_its_step(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.support.learning import "
        "trees_of; from tests.run.test_sharded_run import opened, watched; "
        "trainer, pids = opened(Path(sys.argv[1])); print(*pids, flush=True); "
        "watched(trainer, pids[0], lambda: os.kill(os.getpid(), signal.SIGKILL)); "
        "trainer.step(trees_of(2))"
    )
    path = os.pathsep.join(filter(None, sys.path))
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    # It has no name: with the last process that maps it, it is gone.
    assert_gone([int(pid) for pid in killed.stdout.split()])


def test_a_signal_to_all_is_the_leading_ranks_to_answer(tmp_path: Path) -> None:
    with leading(tmp_path) as (trainer, pids):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pids[0], number)
        trainer.step(trees_of(2))  # its connections are whole
    assert_gone(pids)


def test_closing_twice_ends_them_once(tmp_path: Path) -> None:
    trainer, pids = opened(tmp_path)
    trainer.close()
    trainer.close()
    assert_gone(pids)


@pytest.mark.timeout(720)
def test_the_others_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.support.sharded_runs import "
        "opened; trainer, pids = opened(Path(sys.argv[1])); print(*pids, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert_gone([int(pid) for pid in killed.stdout.split()])


def test_a_rank_that_cannot_begin_says_why(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path), {"learn.devices.count": 2})
    nowhere = PolicyModel(tmp_path / "none", model_of(), cast(Any, None), cast(Any, None))
    with pytest.raises(ConfigError, match="there is no such folder"):
        build_leading_trainer(config, nowhere)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, None),
        (
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"},
            TorchrunLaunch(rank=3, size=4, local_rank=1),
        ),
    ],
)
def test_what_torchrun_says(environment: dict[str, str], wanted: TorchrunLaunch | None) -> None:
    found = TorchrunLaunch.read(environment)
    assert found == wanted
    assert found is None or not found.leads


def test_a_count_that_torchrun_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    config: RunConfig = load_config(config_file(tmp_path), {"learn.devices.count": 3})
    nobody = PolicyModel(tmp_path, model_of(), cast(Any, None), cast(Any, None))
    with pytest.raises(ConfigError, match=r"count is 3, but torchrun started 2"):
        build_leading_trainer(config, nobody)


class Evil:
    """Runs code where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_strangers_setup_runs_no_code(tmp_path: Path) -> None:
    """torchrun's store asks nobody for a key."""
    store = store_at("127.0.0.1", deadline_s=30.0)
    ran = tmp_path / "ran"
    for said in (pickle.dumps(Evil(ran)).hex(), "[]", "[" * 10_000):
        store.set(SETUP, said)
        with pytest.raises(LearnError, match="--rdzv-endpoint"):
            await_setup(store, TorchrunLaunch(rank=1, size=2, local_rank=1))
    assert not ran.exists()


def test_a_setup_travels_whole(tmp_path: Path) -> None:
    store = store_at("127.0.0.1", deadline_s=30.0)
    config: RunConfig = load_config(config_file(tmp_path), {})
    setup = RankSpec(config=plain_config(config), policy="p", rank=0, size=2, local_rank=0)
    announce(store, setup)
    found = await_setup(store, TorchrunLaunch(rank=1, size=2, local_rank=1))
    assert found == setup.for_rank(rank=1, local_rank=1)
    assert found.run == config


def test_stores_listen_where_they_are_reached_and_nowhere_else() -> None:
    store = store_at("127.0.0.1", deadline_s=30.0)
    socket.create_connection(("127.0.0.1", store.port), timeout=30.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=30.0)
    for file in Path(sharded.__file__).parent.glob("*.py"):
        assert "is_master=True" not in file.read_text(), f"{file} makes a store that all reach"


@pytest.mark.timeout(960)
def test_torchrun(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "train", str(config_file(tmp_path)), "run.steps=1"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    folder = tmp_path / "runs" / "several"
    assert [line["step"] for line in read_metrics(folder)] == [1]
    # Rank 1 has taken part: the optimiser's state is in two shards.
    shards = folder / "checkpoints" / "step-000001" / "optimizer.shards"
    assert len(list(shards.glob("*.distcp"))) == 2
