"""A policy whose evaluation spends more on a task, as its config says."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.authoring.tool_env import ToolEnv
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.run.evaluate import evaluate
from agentrl.run.train import train
from agentrl.task import Task
from tests.support.doubles import double, doubles, gold

TINY = """
run: {{name: tiny, folder: {folder}, steps: 1}}
env: {{id: "{module}:doubled"}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 2, batch_size: 4, demonstrations: 60}}
engine: {{slots: 8, context_tokens: 2048}}
sampling: {{max_turn_tokens: 8}}
rollout: {{tasks_per_step: 2, group_size: 2, concurrency: 6, max_turns: 2}}
evaluate: {{tasks: 2}}
metrics: {{tensorboard: false}}
"""


def doubled() -> ToolEnv:
    """Return sums with a tool, paid by length: a policy of no skill earns something."""

    def how_long(task: Task, messages: Sequence[Message]) -> float:
        return len(messages[-1].text) % 8 / 7

    return ToolEnv(tasks=doubles, tools=[double], reward=how_long, gold=gold)


def test_a_policy_is_evaluated_by_its_config(tmp_path: Path) -> None:
    """The keys are for `agentrl eval`; a training run does not take them."""
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY.format(folder=tmp_path / "runs", module=__name__))
    scaling = {"name": "rtv", "samples": 2, "votes": 2, "note_tokens": 4}
    with pytest.raises(ConfigError, match=r"evaluate\.scaling\.name, .* set but never read"):
        train(config, {"evaluate.scaling": scaling, "run.name": "other"})
    train(config)
    report = evaluate(config, {"evaluate.scaling": scaling})
    assert report.scaled is not None
    assert report.scaled.costs["attempts per task"] == 2
    assert report.scaled.costs["of which notes, votes, and plans"] > 0
    assert len(report.samples) == 2
