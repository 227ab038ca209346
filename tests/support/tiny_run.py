"""A whole run on a tiny model, in seconds: its config, its environment, and what it leaves."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.config.run import MakePolicySection, MakeVisionSection
from agentrl.message import Message
from agentrl.run.train import TrainingResult
from agentrl.task import Split
from tests.support.doubles import double, doubles, gold

CONFIG = """
run: {{name: tiny, folder: {folder}, steps: 4, checkpoint_every: 2}}
env: {{id: "tests.support.tiny_run:Doubles"}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 20, batch_size: 8, demonstrations: 60, guess_fraction: 0.3}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 6, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 6}}
metrics: {{tensorboard: false}}
"""
VISION = MakeVisionSection(hidden_size=32, heads=2, layers=2, intermediate_size=32, max_pixels=3136)
SEEING_POLICY = MakePolicySection(
    hidden_size=32,
    layers=2,
    heads=2,
    kv_heads=2,
    head_dim=16,
    intermediate_size=32,
    vocab_size=300,
    vision=VISION,
)


def how_long(task: agentrl.Task, messages: Sequence[Message]) -> float:
    """Pay by length, so that a policy this small earns something to learn from."""
    return len(messages[-1].text) % 8 / 7


class Doubles(ToolEnv):
    def __init__(self, leak: bool = False, empty: bool = False) -> None:
        def tasks(split: Split, seed: int) -> Iterable[agentrl.Task]:
            return [] if empty else doubles("train" if leak else split, seed)

        super().__init__(tasks=tasks, tools=[double], reward=how_long, gold=gold)


def config_file(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(CONFIG.format(folder=folder / "runs"))
    return path


def final_weights(result: TrainingResult) -> dict[str, torch.Tensor]:
    return load_file(
        result.folder / "checkpoints" / f"step-{result.steps:06d}" / "model.safetensors"
    )


def seeing_changes(folder: Path) -> dict[str, Any]:
    """Return what makes configs/see_button.yaml small."""
    return {
        "run.folder": str(folder),
        "run.steps": 2,
        "env.kwargs": {"clicks": 2, "width": 56, "height": 56},
        "policy.make": SEEING_POLICY.model_dump(),
        "warmstart.steps": 3,
        "warmstart.until_loss": None,
        "warmstart.demonstrations": 40,
        "warmstart.batch_size": 8,
        "engine.context_tokens": 128,
        "rollout.tasks_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_turns": 2,
        "rollout.images": 1,
        "evaluate.tasks": 4,
    }
