"""Runs on what people have already: a class made for TRL, a parquet file in five lines of YAML."""

import json
from pathlib import Path

import pytest
import yaml

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train
from tests.support.foreign_packages import BENCH
from tests.support.pages import blocks

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
ROOT = Path(__file__).parents[2]
SMALL = """
run: {name: questions, steps: 12, threads: 1}
policy:
  make: {hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab_size: 384}
warmstart:
  {steps: 120, batch_size: 16, demonstrations: 160, learning_rate: 2.5e-3, guess_fraction: 0.6}
engine: {slots: 64, context_tokens: 96}
sampling: {max_turn_tokens: 12}
rollout: {tasks_per_step: 8, group_size: 8, concurrency: 64, max_turns: 1}
learn: {optimizer: {learning_rate: 1.0e-3}}
evaluate: {tasks: 40}
metrics: {tensorboard: false}
"""
COLOURS = ("red", "blue", "green", "white", "black")


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


@pytest.mark.slow
@pytest.mark.pyarrow
def test_a_parquet_file_in_five_lines_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are those of docs/datasets.md."""
    monkeypatch.syspath_prepend(BENCH / "pyarrow")
    monkeypatch.chdir(tmp_path)
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    answers = [COLOURS[number % len(COLOURS)] for number in range(400)]
    questions = [f"Ball {n} is {colour}. Which colour?" for n, colour in enumerate(answers)]
    parquet.write_table(pyarrow.table({"question": questions, "answer": answers}), "tasks.parquet")
    text = next(b.text for b in blocks(ROOT / "docs/datasets.md", ROOT) if b.language == "yaml")
    assert len(text.splitlines()) == 5
    env = yaml.safe_load(text)["env"]
    config = {**yaml.safe_load(SMALL), "env": env}
    config["run"]["folder"] = str(tmp_path / "runs")
    Path("run.yaml").write_text(yaml.safe_dump(config))
    result = train("run.yaml")
    assert result.after["pass@1"] > result.before["pass@1"] + 0.15
