"""Drafts in a run from a config: tokens saved, what trains, resuming, what is refused.

Mutants seen caught: listed in tests/unit/rollout/drafts/test_play.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.metrics.writer import read_metrics
from agentrl.run.extensions.curation import DRAFTS
from agentrl.run.train import TrainingResult, train
from agentrl.store.codec import unpack
from tests.support.tiny_run import config_file, final_weights


def tiny(folder: Path, drafts: dict[str, Any] | None = None, **overrides: Any) -> TrainingResult:
    """Train on four tasks, two a step: steps 3 and 4 are the second epoch."""
    folder.mkdir(exist_ok=True)
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    return train(config_file(folder), {"env.task_limit": 4, "rollout.drafts": drafts or {}, **keys})


@pytest.mark.parametrize("exact", [False, True])
def test_the_second_epoch_saves_tokens(tmp_path: Path, exact: bool) -> None:
    drafts = {"residual": True, "leniency": 1.0} if exact else {}
    result = tiny(tmp_path, drafts)
    metrics = read_metrics(result.folder)
    assert [line["drafts/found"] for line in metrics] == [0, 0, 8, 8]
    assert [line["drafts/saved_tokens"] > 0 for line in metrics] == [False, False, True, True]
    assert all(line["drafts/skip_ratio"] <= 1 for line in metrics)
    oldest = [line["age/max"] for line in metrics]
    assert oldest == [0, 0, 0, 0] if exact else [0, 0, 2, 2]
    if exact:
        assert all(line["engine_gap/max"] < 1e-3 for line in metrics)


SUMS = """
run: {{name: sums, folder: {folder}, steps: 4}}
env:
  id: code/Mix-v0
  task_limit: 8
  kwargs:
    families: {{chain_sum: {{min_terms: 2, max_terms: 3, min_digits: 2, max_digits: 3}}}}
    system: ""
policy: {{make: {{hidden_size: 64, layers: 2, heads: 2, kv_heads: 2}}}}
warmstart: {{steps: 40, batch_size: 16, demonstrations: 8, guess_fraction: 0.5}}
engine: {{slots: 16, context_tokens: 192}}
sampling: {{max_turn_tokens: 48}}
rollout: {{tasks_per_step: 4, group_size: 4, concurrency: 16, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 4}}
metrics: {{tensorboard: false}}
"""
"""The quickstart's task, eight of its tasks, two epochs."""


@pytest.mark.namespaces
def test_sums_with_a_python_tool_save_tokens_in_the_second_epoch(tmp_path: Path) -> None:
    """Tools run in the sandbox again, and answer as they did."""
    path = tmp_path / "sums.yaml"
    path.write_text(SUMS.format(folder=tmp_path))
    result = train(path, {"rollout.drafts": {"leniency": 1.0, "residual": True}})
    metrics = read_metrics(result.folder)
    saved = [line["drafts/saved_tokens"] for line in metrics]
    assert saved[:2] == [0, 0]
    assert min(saved[2:]) > 0
    assert sum(line["rollout/tool_calls_mean"] for line in metrics) > 0
    assert max(line["engine_gap/max"] for line in metrics) < 1e-4


def test_a_run_that_is_stopped_and_resumed_has_the_same_weights_bit_for_bit(
    tmp_path: Path,
) -> None:
    drafts = {"residual": True, "leniency": 1.0}
    whole = tiny(tmp_path / "whole", drafts)
    part = tiny(tmp_path / "parts", drafts, run__steps=2)
    kept = unpack((part.folder / "checkpoints" / "step-000002" / DRAFTS).read_bytes())
    assert len(kept) == 16
    config = load_config(
        config_file(tmp_path / "parts"), {"env.task_limit": 4, "rollout.drafts": drafts}
    )
    resumed = train(config, resume=True)
    first, second = final_weights(whole), final_weights(resumed)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert read_metrics(resumed.folder)[-1]["drafts/saved_tokens"] > 0


def test_a_run_without_drafts_keeps_none(tmp_path: Path) -> None:
    result = train(config_file(tmp_path), {"run.steps": 1})
    assert not any(name.startswith("drafts/") for name in read_metrics(result.folder)[0])
    assert not (result.folder / "checkpoints" / "step-000001" / DRAFTS).exists()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"drafts": {"residual": True}}, r"residual.*leniency 1\.64872.*leniency: 1"),
        ({"drafts": {"residual": True, "leniency": 1.0, "scale": 0.5}}, r"scale 0\.5"),
        ({"drafts": {"alternatives": 5}}, "alternatives is 5.*has no effect"),
        ({"drafts": {}, "branching.topology": "aepo"}, r"topology is aepo"),
        ({"drafts": {"reuse": "hope"}}, "reuse"),
        ({"drafts": {"leniency": -1.0}}, "leniency"),
    ],
)
def test_what_drafts_cannot_be_combined_with(
    tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    overrides = {f"rollout.{name}": value for name, value in keys.items()}
    with pytest.raises(ConfigError, match=says):
        load_config(config_file(tmp_path), overrides)
