"""Two-layer models with random weights in the shape of each family, through a short quickstart with
tools: what trains is what was sampled, and the engine's log-probs are the trainer's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.support.examples import spread_cases
from tests.support.family_templates import FAMILIES, tokenizer_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.namespaces]

MAX_GAP = 1e-4
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT: dict[str, Any] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", "qwen3", {}),
    "qwen3.5": (
        "Qwen3_5Text",
        "qwen3.5",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "glm-4.5": (
        "Glm4Moe",
        "glm-4.5",
        {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **EXPERTS},
    ),
    "gpt-oss": (
        "GptOss",
        "gpt-oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128},
    ),
    "llama-3": ("Llama", "llama-3", {}),
    "mistral": ("Mistral", "mistral", {"sliding_window": None}),
    "gemma-3": ("Gemma3Text", "gemma-3", {"sliding_window": 128}),
    "deepseek-v3": (
        "DeepseekV3",
        "deepseek-v3",
        {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "num_key_value_heads": 4,
            **EXPERTS,
            **LATENT,
            "head_dim": 8,
        },
    ),
}
SHIPPED = {"llama-3": "llama3", "gemma-3": "gemma"}
"""Families whose templates agentrl ships."""


def make_model(name: str, folder: Path) -> None:
    """Write a model of a family, with a tokenizer and a template, as a Hugging Face folder."""
    import transformers

    from agentrl.chat.tokenizer import train_tokenizer

    kind, template, further = MODELS[name]
    if name in SHIPPED:
        texts = ["What is the sum of 12 and 30? It is 42."]
        tokenizer = train_tokenizer(texts, vocab_size=300, folder=folder, template=SHIPPED[name])
    else:
        tokenizer = tokenizer_of(FAMILIES[template], folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **(SMALL | further),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)


@pytest.mark.parametrize("name", spread_cases(list(MODELS), 3))
def test_what_trains_is_what_was_sampled(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.cli.app import add_commands, app

    folder = tmp_path / name
    make_model(name, folder)
    monkeypatch.chdir(tmp_path)
    settings = (
        *(f"policy.path={folder}", "policy.make=null", "run.steps=2", "run.threads=1"),
        *("warmstart.steps=20", "warmstart.batch_size=4", "warmstart.demonstrations=16"),
        *("warmstart.learning_rate=1e-2", "warmstart.guess_fraction=0"),
        *("rollout.tasks_per_step=2", "rollout.group_size=2", "engine.context_tokens=900"),
        *("warmstart.layout=padded", "learn.layout=padded"),
        *("sampling.max_turn_tokens=64", "evaluate.tasks=2", "metrics.tensorboard=false"),
    )
    add_commands()
    done = CliRunner().invoke(app, ["train", str(root / "configs/quickstart.yaml"), *settings])
    assert done.exit_code == 0, done.output
    (lines,) = tmp_path.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    steps = [row for row in rows if "engine_gap/max" in row]
    assert len(steps) == 2
    for row in steps:
        assert row["engine_gap/max"] <= MAX_GAP
        assert row["tokens/trained"] > 0
        assert row["tokens/trained"] == row["rollout/sampled_tokens"]
