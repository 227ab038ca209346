"""Unit tests of the longest context of a model, and of runs beyond it.

Mutations that were seen to fail here: scaling left out, applied to Llama's kind or to Gemma 3, YaRN
from the stated length; a text model's section not looked into; contexts of exactly the limit
refused; refused by the engine that computes them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.models.context_length import (
    ALLOW_VARIABLE,
    find_context_fault,
    find_context_limit,
    is_refused,
    read_context_limit,
)
from agentrl.run.preflight import check_machine

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_position_embeddings": 40960}, 40960),
        ({"n_positions": 1024, "n_ctx": 2048}, 1024),
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 40960, "rope_parameters": YARN}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        (
            {"max_position_embeddings": 131072, "rope_scaling": {**YARN, "rope_type": "llama3"}},
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, 4096),
        (
            {
                "max_position_embeddings": 131072,
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 8192,
                "rope_parameters": {
                    "full_attention": YARN,
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            131072,
        ),
        ({"text_config": {"max_position_embeddings": 128000}}, 128000),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "x", "factor": None}}, 4096),
    ],
)
def test_the_limit_is_what_vllm_derives(fields: dict[str, Any], limit: int | None) -> None:
    assert find_context_limit(fields) == limit


def run(tokens: int, path: str = "x", **engine: Any) -> RunConfig:
    """Return a run with such contexts."""
    return RunConfig.model_validate(
        {
            "env": {"id": "reasoning/ChainSum-v0"},
            "policy": {"path": path},
            "engine": {"context_tokens": tokens, **engine},
            "learn": {"micro_batch_tokens": tokens},
        }
    )


def test_a_context_beyond_the_limit_is_named() -> None:
    assert find_context_fault(run(4096), 4096) == ""
    assert find_context_fault(run(4096), None) == ""
    fault = find_context_fault(run(8192), 4096)
    assert fault.startswith("engine.context_tokens is 8,192, but the model is made for contexts ")
    assert "set it to at most 4096" in fault
    changed = {"options": {"hf-overrides": {"rope_parameters": YARN}}}
    assert find_context_fault(run(8192, vllm=changed), 4096) == ""


def test_vllm_refuses_and_others_compute() -> None:
    assert not is_refused(run(4096), {})
    assert is_refused(run(4096, kind="vllm"), {})
    assert not is_refused(run(4096, kind="vllm"), {ALLOW_VARIABLE: "1"})
    assert is_refused(run(4096, kind="vllm"), {ALLOW_VARIABLE: "0"})


def test_a_folder_without_a_config_has_no_limit(tmp_path: Path) -> None:
    assert read_context_limit(tmp_path) is None
    for text in ("[", "[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        assert read_context_limit(tmp_path) is None


def test_a_run_is_told_before_it_begins(tmp_path: Path) -> None:
    fields = {"model_type": "qwen3", "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    (tmp_path / "tokenizer.json").touch()
    said: list[str] = []
    check_machine(run(4096, str(tmp_path)), said.append)
    assert len(said) == 1
    assert "up to 2,048 tokens (max_position_embeddings)" in said[0]
    check_machine(run(2048, str(tmp_path)), said.append)
    assert len(said) == 1
