"""agentrl as a contender: `agentrl.run.train.train`, with everything a run of it does."""

import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from agentrl.config.load import load_config
from agentrl.learn.trainer import PolicyTrainer
from agentrl.run.train import train
from agentrl.runtime.progress import NOTHING, SilentProgress
from benchmarks.beside_trl.setup import Setup
from benchmarks.beside_trl.stepping import Stepping

ENVS = {"single turn": "Writing", "multi-turn": "Guessing", "waiting": "GuessingWaiting"}
LONGEST_PROMPT_TOKENS = 448


@dataclass(slots=True)
class _Steps:
    """Phase of training: ends a step when it is told its figures."""

    stepping: Stepping

    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        del amount
        self.stepping.tokens = int(figures["tokens/trained"])
        self.stepping.rewards = (figures["reward/mean"],)
        self.stepping.boundary(part_is_training=True)

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        """Drop the figures of a step that goes on."""


@dataclass(slots=True)
class _Watch(SilentProgress):
    """Looks at the training phase only."""

    stepping: Stepping

    @contextmanager
    def phase(self, name: str, *, total: int, done: int = 0) -> Generator[Any]:
        with super(_Watch, self).phase(name, total=total, done=done) as quiet:
            if name != "train":
                yield quiet
                return
            self.stepping.boundary(part_is_training=True)
            yield _Steps(self.stepping)


def learn_section(setup: Setup) -> dict[str, Any]:
    """Return the learning half's settings: TRL's loss with agentrl's defaults beside it; where the
    modes are compared those alone, which correct for tokens of older versions."""
    if setup.task == "waiting":
        return {"optimizer": {"learning_rate": setup.learning_rate}}
    return {
        "advantage": {"name": "grpo", "epsilon": setup.advantage_epsilon},
        "loss": {
            "name": "ppo_clip",
            "clip_low": setup.clip,
            "clip_high": setup.clip,
            "dual_clip": None,
        },
        "correction": {"name": "none"},
        "aggregation": "token-mean",
        "optimizer": {
            "learning_rate": setup.learning_rate,
            "betas": list(setup.betas),
            "epsilon": setup.epsilon,
            "weight_decay": setup.weight_decay,
            "max_grad_norm": setup.max_grad_norm,
        },
    }


def run_values(setup: Setup, folder: Path) -> dict[str, Any]:
    """Return the config of the run."""
    in_flight = setup.rows * setup.in_flight
    waits = {"wait_share": setup.wait_share} if setup.task == "waiting" else {}
    modes = {
        "sync": {},
        "partial": {"over_provision": float(setup.in_flight)},
        "async": {"max_staleness": setup.in_flight - 1},
    }
    return {
        "run": {
            "name": "ours",
            "folder": str(folder),
            "steps": setup.steps,
            "seed": setup.first_round,
            "threads": setup.threads,
            "checkpoint_every": setup.steps,
        },
        "env": {
            "id": f"benchmarks.beside_trl.envs:{ENVS[setup.task]}",
            "kwargs": {"first_round": setup.first_round, **waits},
        },
        "policy": {"path": setup.policy},
        "engine": {
            "slots": in_flight,
            "context_tokens": LONGEST_PROMPT_TOKENS + setup.completion_tokens,
        },
        "sampling": {
            "temperature": setup.temperature,
            "max_turn_tokens": setup.completion_tokens,
        },
        "rollout": {
            "tasks_per_step": setup.groups,
            "group_size": setup.group_size,
            "concurrency": in_flight,
            "max_turns": 1 + (setup.rules.most_guesses if setup.rules else 0),
            "mode": setup.mode,
            **modes[setup.mode],
        },
        "learn": learn_section(setup),
        "evaluate": {"tasks": setup.heldout},
    }


def config_file(values: Mapping[str, Any], path: Path) -> Path:
    """Write a config to `path` and return that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(values)))
    return path


def steps(setup: Setup, stepping: Stepping, *, limit_tokens: int | None) -> None:
    """Train; `stepping` decides when each step begins."""
    plain = PolicyTrainer.step

    def timed(self: PolicyTrainer, trees: Any, *rest: Any) -> dict[str, float]:
        first = min(trees[0].trajectories(), key=lambda trajectory: trajectory.sample)
        end = first.sources.index("sampled")
        stepping.prompt_ids = first.token_ids[:end]
        with stepping.part():
            return plain(self, trees, *rest)

    with tempfile.TemporaryDirectory() as name, patch.object(PolicyTrainer, "step", timed):
        values = run_values(setup, Path(name))
        if limit_tokens is not None:
            values["learn"]["micro_batch_tokens"] = limit_tokens
        config = load_config(config_file(values, Path(name) / "ours.yaml"))
        train(config, progress=_Watch(stepping))


def main() -> None:
    """Serve the process that measures, at the other end of the descriptor that is given."""
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    told = pipe.recv()
    steps(Setup(**told["setup"]), Stepping(pipe), limit_tokens=told["limit_tokens"])


if __name__ == "__main__":
    main()
