"""Runs on what people have already: a class made for TRL, and rows in a file.

Mutants seen caught: a reward of TRL's that is paid on the wrong turn (it does not rise).
"""

import json
from pathlib import Path

import pytest

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train

CONFIG = """
run: {{name: counting, folder: {folder}/runs, steps: {steps}, threads: 1}}
env:
  id: trl:tests.support.counter_factory:IncrementEnv
  kwargs:
    path: {folder}/rows.jsonl
    reward: trl:tests.support.counter_factory:reward_vowels
    gold: tests.support.counter_factory:gold
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 20, batch_size: 8, demonstrations: 60, guess_fraction: 0.3}}
engine: {{slots: 32, context_tokens: 384}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 4, group_size: 8, max_turns: 2}}
learn: {{optimizer: {{learning_rate: 3.0e-3}}}}
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
    (tmp_path / "run.yaml").write_text(CONFIG.format(folder=tmp_path, steps=12))
    result = train(tmp_path / "run.yaml")
    rewards = [line["reward/mean"] for line in read_metrics(result.folder)]
    print(rewards)
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
