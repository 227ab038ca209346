"""A whole run and an evaluation whose first policy is a GGUF file."""

import json
from pathlib import Path

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.provenance import provenance
from agentrl.run.evaluate import evaluate
from agentrl.run.evaluation_folder import policy_digest
from agentrl.run.train import train
from tests.support.tiny_gguf import write_gguf


def test_a_run_and_an_evaluation_begin_with_a_gguf_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    config = RunConfig.model_validate(
        {
            "run": {"folder": str(tmp_path), "steps": 1},
            "env": {"id": "tests.support.tiny_run:Doubles"},
            "policy": {"path": str(file), "template": "hermes"},
            "engine": {"slots": 4, "context_tokens": 512},
            "sampling": {"max_turn_tokens": 4},
            "rollout": {"tasks_per_step": 1, "group_size": 2, "max_turns": 1},
            "evaluate": {"tasks": 2},
            "metrics": {"tensorboard": False},
        }
    )
    result = train(config)
    assert result.before["n"] == 2
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["policy"] == provenance(file)
    own = config.model_copy(update={"run": config.run.model_copy(update={"name": "none"})})
    assert len(evaluate(own, out=tmp_path / "out").samples) == 2
    recorded = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert recorded["digest"] == policy_digest(file) != policy_digest(str(file) + "x")
    vllm = own.model_copy(update={"engine": own.engine.model_copy(update={"kind": "vllm"})})
    with pytest.raises(ConfigError, match=r"vllm"):
        evaluate(vllm)
