"""A run on what people have already: a class made for TRL."""

import json
from pathlib import Path

import pytest

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train

CONFIG = """
run: {{name: counting, folder: {folder}/runs, steps: 16, threads: 1}}
env:
  id: trl:tests.support.counter_factory:IncrementEnv
  kwargs: {{path: {folder}/rows.jsonl, gold: "tests.support.counter_factory:gold"}}
policy:
  make: {{hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab_size: 512}}
warmstart:
  {{steps: 150, batch_size: 16, demonstrations: 80, learning_rate: 2.5e-3, guess_fraction: 0.7}}
engine: {{slots: 64, context_tokens: 384}}
sampling: {{max_turn_tokens: 40}}
rollout: {{tasks_per_step: 8, group_size: 8, concurrency: 64, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 4}}
metrics: {{tensorboard: false}}
"""


@pytest.mark.slow
def test_a_class_made_for_trl_is_trained(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Add five, number {start}."}],
            "start": start,
            "target": start + 5,
        }
        for start in range(100)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(CONFIG.format(folder=tmp_path))
    result = train(tmp_path / "run.yaml")
    rewards = [line["reward/mean"] for line in read_metrics(result.folder)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
