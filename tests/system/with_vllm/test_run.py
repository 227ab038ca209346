"""Whole runs of a tiny policy with `engine.kind: vllm`, beside the same with the local engine."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.eval import newest_checkpoint
from agentrl.config.load import load_config
from agentrl.metrics.writer import read_metrics
from agentrl.run.evaluate import evaluate
from agentrl.run.train import TrainingResult, train
from tests.support.examples import spread_cases
from tests.support.tiny_run import config_file, seeing_changes

pytestmark = pytest.mark.filterwarnings("default")

SIZES = {"run.steps": 3, "policy.make.head_dim": 32}
"""vLLM has no narrower heads on a CPU."""


def run(folder: Path, kind: str, changes: dict[str, Any]) -> TrainingResult:
    folder.mkdir()
    config = config_file(folder)
    return train(config, {"engine.kind": kind, **SIZES, **changes})


SAME_DRAWS = {"engine.vllm.sampler": "agentrl"}
ADAPTERS = {"learn.lora": {"rank": 4}}


@pytest.mark.parametrize(
    ("learn", "vllm"),
    spread_cases([({}, {}), (ADAPTERS, {"engine.vllm.adapters": "native"})], 1),
    ids=["all weights", "adapters, native"],
)
@pytest.mark.nightly
def test_a_run_is_that_of_the_local_engine(
    tmp_path: Path, learn: dict[str, Any], vllm: dict[str, Any]
) -> None:
    changes = {"local": learn, "vllm": {**learn, **vllm, **SAME_DRAWS}}
    found = {kind: run(tmp_path / kind, kind, changes[kind]) for kind in changes}
    figures = {kind: read_metrics(result.folder) for kind, result in found.items()}
    for ours, theirs in zip(figures["local"], figures["vllm"], strict=True):
        # The same tokens were sampled in every step, so the weights went over each time.
        for name in ("reward/mean", "tokens/trained"):
            assert theirs[name] == pytest.approx(ours[name]), name
        assert 0 < theirs["engine_gap/max"] < 1e-3
        assert theirs["age/max"] == 0
    assert found["vllm"].after["reward"] == found["local"].after["reward"]
    result = found["vllm"]
    config = load_config(result.folder / "config.yaml")
    report = evaluate(config, checkpoint=newest_checkpoint(result.folder))
    assert report.summary()["reward"] == result.after["reward"]


@pytest.mark.nightly
def test_drafts_are_reused_as_with_the_local_engine(tmp_path: Path) -> None:
    drafts = {"env.task_limit": 4, "rollout.drafts": {}}
    changes = {"local": drafts, "vllm": {**drafts, **SAME_DRAWS}}
    found = {kind: run(tmp_path / kind, kind, changes[kind]) for kind in changes}
    local, vllm = (read_metrics(result.folder) for result in found.values())
    assert [line["drafts/saved_tokens"] > 0 for line in vllm] == [False, False, True]
    for name in ("drafts/saved_tokens", "drafts/found", "reward/mean", "engine_gap/max"):
        assert [line[name] for line in vllm] == pytest.approx(
            [line[name] for line in local], abs=1e-4
        ), name


def test_a_run_beside_the_trainer(tmp_path: Path) -> None:
    """Two servers, which take their weights in turn."""
    asked = {"rollout.mode": "async", "rollout.max_staleness": 1}
    servers = {"engine.processes": 2, "engine.rolling": True}
    result = run(tmp_path / "async", "vllm", {**asked, **servers})
    lines = read_metrics(result.folder)
    assert len(lines) == 3
    assert all(0 < line["engine_gap/age0_max"] < 1e-3 for line in lines if line["age/max"] == 0)
    assert all(line["age/max"] <= 1 for line in lines)


@pytest.mark.nightly
def test_a_server_that_sleeps_while_the_trainer_computes(tmp_path: Path) -> None:
    """On a CPU vLLM gives up nothing; the calls and their order are the same."""
    result = run(tmp_path / "sync", "vllm", {"engine.vllm.sleep_level": 2, **ADAPTERS})
    lines = read_metrics(result.folder)
    assert len(lines) == 3
    assert all(0 < line["engine_gap/max"] < 1e-3 for line in lines)
    assert result.after["failed"] == 0


@pytest.mark.nightly
def test_two_engines_take_their_weights_by_broadcast(tmp_path: Path) -> None:
    """Adapters, vLLM's own, go round; both engines have had the base by then."""
    changes = {
        **ADAPTERS,
        **SAME_DRAWS,
        "engine.vllm.adapters": "native",
        "engine.processes": 2,
        "engine.broadcast": {"bucket_bytes": 10_000},
        "rollout.mode": "async",
        "rollout.max_staleness": 0,
        "learn.optimizer": {"learning_rate": 0.03},
    }
    lines = read_metrics(run(tmp_path / "broadcast", "vllm", changes).folder)
    assert len(lines) == SIZES["run.steps"]
    assert all(line["engine_gap/age0_fraction"] == 1 for line in lines)
    assert all(0 < line["engine_gap/age0_max"] < 1e-3 for line in lines)


@pytest.mark.nightly
def test_a_policy_that_sees_trains_as_with_the_local_engine(tmp_path: Path) -> None:
    """Its images are shown over turns, and its tower's new weights reach vLLM in every step."""
    found: dict[str, TrainingResult] = {}
    for kind, draws in (("local", {}), ("vllm", SAME_DRAWS)):
        changes = seeing_changes(tmp_path / kind)
        changes["policy.make"] |= {"head_dim": SIZES["policy.make.head_dim"]}
        found[kind] = train(
            "configs/see_button.yaml",
            {**changes, "run.steps": 3, "engine.kind": kind, **draws},
        )
    local, vllm = (read_metrics(result.folder) for result in found.values())
    assert len(vllm) == len(local) == 3
    for ours, theirs in zip(local, vllm, strict=True):
        assert theirs["tokens/trained"] == ours["tokens/trained"]
        assert 0 < theirs["engine_gap/max"] < 1e-3
    assert found["vllm"].after["reward"] == found["local"].after["reward"]
