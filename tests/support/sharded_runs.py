"""Runs whose trainer is several processes: their config, and trainers of such alone."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from agentrl.config.load import load_config
from agentrl.learn.sharded.processes import LocalRankLink
from agentrl.learn.sharded.rank_zero import RankZeroTrainer
from agentrl.run.build_trainer import build_leading_trainer
from agentrl.run.policy_model import PolicyModel
from tests.support.learning import model_of
from tests.support.processes import runs

CONFIG = """
run: {{name: several, folder: {folder}, steps: 2, checkpoint_every: 1}}
env: {{id: "tests.support.tiny_run:Doubles"}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 10, batch_size: 8, demonstrations: 40, guess_fraction: 0.3}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 16}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 6, max_turns: 2}}
evaluate: {{tasks: 2}}
metrics: {{tensorboard: false}}
"""
END_S = 60.0


def config_file(folder: Path) -> Path:
    file = folder / "several.yaml"
    file.write_text(CONFIG.format(folder=folder / "runs"))
    return file


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + END_S
    while any(map(runs, pids)):
        assert time.monotonic() < deadline, f"of {pids} some are left"
        time.sleep(0.05)


def opened(folder: Path, **changes: Any) -> tuple[RankZeroTrainer, list[int]]:
    """Return a trainer on two devices around a small policy, and the other process's id."""
    config = load_config(config_file(folder), {"learn.devices.count": 2, **changes})
    policy = folder / "policy"
    model = model_of()
    model.save_pretrained(policy)
    trainer = build_leading_trainer(
        config, PolicyModel(policy, model, cast(Any, None), cast(Any, None))
    )
    return trainer, cast(LocalRankLink, trainer._link).pids  # pyright: ignore[reportPrivateUsage]


@contextmanager
def leading(folder: Path, **changes: Any) -> Generator[tuple[RankZeroTrainer, list[int]]]:
    trainer, pids = opened(folder, **changes)
    try:
        yield trainer, pids
    finally:
        trainer.close()
