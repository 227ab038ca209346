"""A short quickstart whose chat format is a renderer: what trains is what was sampled, and the
engine's log-probs are the trainer's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.support.examples import spread_cases
from tests.support.renderer_tokenizers import add_package, tokenizer_of_renderer

pytestmark = [
    *(pytest.mark.renderers, pytest.mark.namespaces),
    *(pytest.mark.slow, pytest.mark.timeout(600)),
]

MAX_GAP = 1e-4
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("renderer", spread_cases(["qwen3", "qwen3.5", "kimi-k2"], 1))
def test_what_trains_is_what_was_sampled(
    renderer: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config

    from agentrl.cli.app import add_commands, app

    add_package()
    folder = tmp_path / "model"
    tokenizer = tokenizer_of_renderer(renderer, folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        **SMALL,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
        eos_token_id=tokenizer.eos_token_id,  # pyright: ignore[reportArgumentType]
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    settings = (
        *(f"policy.path={folder}", "policy.make=null", "run.steps=2", "run.threads=1"),
        *(f"policy.renderer={renderer}", "warmstart.steps=20", "warmstart.batch_size=4"),
        *("warmstart.demonstrations=16", "warmstart.learning_rate=1e-2"),
        *("warmstart.guess_fraction=0", "warmstart.layout=padded", "learn.layout=padded"),
        *("rollout.tasks_per_step=2", "rollout.group_size=2", "engine.context_tokens=1800"),
        *("sampling.max_turn_tokens=64", "evaluate.tasks=2", "metrics.tensorboard=false"),
    )
    add_commands()
    done = CliRunner().invoke(app, ["train", str(root / "configs/quickstart.yaml"), *settings])
    assert done.exit_code == 0, (done.output, done.exception)
    (lines,) = tmp_path.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    steps = [row for row in rows if "engine_gap/max" in row]
    assert len(steps) == 2
    for row in steps:
        assert row["engine_gap/max"] <= MAX_GAP
        assert row["tokens/trained"] > 0
        assert row["tokens/trained"] == row["rollout/sampled_tokens"]
