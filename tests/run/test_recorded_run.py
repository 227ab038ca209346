"""A whole run on recordings: a tiny policy comes to follow experts whose tools never run again.

On one thread everything is seeded: the rise is the same each time.
"""

import json
from pathlib import Path
from statistics import fmean

import pytest

from agentrl.cli.record import record
from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train

SUMS = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
CONFIG = """
run: {{name: tiny, folder: {folder}, steps: 24, threads: 1}}
env:
  id: recorded/Expert-v0
  kwargs: {{recordings: {recordings}, heldout_fraction: 0.2, patches: 1}}
policy:
  make: {{hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab_size: 512}}
warmstart: {{steps: 110, batch_size: 16, demonstrations: 24, learning_rate: 2.5e-3}}
engine: {{slots: 64, context_tokens: 192}}
sampling: {{max_turn_tokens: 48}}
rollout: {{tasks_per_step: 8, group_size: 16, concurrency: 64, max_turns: 3}}
learn:
  advantage: {{name: ui_s1}}
  optimizer: {{learning_rate: 1.0e-3, warmup_steps: 2}}
evaluate: {{tasks: 4, threshold: 2.0}}
metrics: {{tensorboard: false}}
"""


@pytest.mark.nightly
@pytest.mark.namespaces
def test_a_tiny_policy_comes_to_follow_its_experts(tmp_path: Path) -> None:
    """The figure counts turns before the first patch only, so no patch can raise it."""
    recordings, config = tmp_path / "sums.jsonl", tmp_path / "tiny.yaml"
    kwargs = json.dumps({"system": "", "families": SUMS})
    record("code/Mix-v0", recordings, kwargs=kwargs, tasks=24, concurrency=4, seed=0)
    config.write_text(CONFIG.format(folder=tmp_path / "runs", recordings=recordings))
    result = train(config)
    steps = [row for row in read_metrics(result.folder) if "component/sop_score" in row]
    scores = [float(row["component/sop_score"]) for row in steps]
    assert len(scores) == 24
    assert fmean(scores[-4:]) > fmean(scores[:4]) + 0.1
    assert all(row["batch/trajectories"] == 8 * 16 for row in steps)
