"""Do both compute the same? Log-probs, gradients, credit and prompts, before anything is timed."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from agentrl.config.load import load_config
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from benchmarks.beside_trl.batch import Said, drawn_batch, relative_error
from benchmarks.beside_trl.ours import config_file, run_values
from benchmarks.beside_trl.race import Program, started
from benchmarks.beside_trl.setup import Setup, StepRecord

TOLERANCE_NATS = 1e-4
TOLERANCE = 1e-4
"""Relative, of gradients and of advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far the two are apart."""

    logprobs_nats: float
    """The largest difference."""
    gradients: float
    """Norm of the difference over TRL's norm."""

    def check(self) -> None:
        """End the benchmark when they are too far apart."""
        if not self.logprobs_nats <= TOLERANCE_NATS:
            raise SystemExit(
                f"log-probs differ from TRL's by up to {self.logprobs_nats:.2g} nats, allowed are "
                f"{TOLERANCE_NATS:g}: nothing is timed"
            )
        if not self.gradients <= TOLERANCE:
            raise SystemExit(
                f"gradients differ from TRL's by {self.gradients:.2g} of their norm, allowed is "
                f"{TOLERANCE:g}: nothing is timed"
            )


def agreement(setup: Setup, peer: Program, *, seed: int = 0) -> Agreement:
    """Give both one batch of the same tokens, masks and advantages, and compare."""
    model = load_model(setup.policy, dtype="float32", device="cpu")
    groups = [
        [
            replace(said, advantage=credit)
            for said, credit in zip(
                group, grpo([s.reward for s in group], epsilon=setup.advantage_epsilon), strict=True
            )
        ]
        for group in drawn_batch(model.config.vocab_size, seed=seed)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flat = [said for group in groups for said in group]
        told = {
            "what": "agreement",
            "setup": asdict(setup),
            "folder": name,
            "prompts": [said.prompt for said in flat],
            "completions": [said.completion for said in flat],
            "masks": [said.mask for said in flat],
            "advantages": [said.advantage for said in flat],
        }
        with started(peer, told, threads=setup.threads) as process:
            logprobs: list[list[float]] = process.answer()
        theirs = load_file(folder / "gradients.safetensors")
        trees = _trees(groups, iter(logprobs))
        config = load_config(config_file(run_values(setup, folder), folder / "ours.yaml"))
        trainer = PolicyTrainer(model, config.learn, seed=0, steps=1)
        gradients, figures = _gradients(trainer, trees)
    names = sorted(theirs)
    return Agreement(
        logprobs_nats=figures["engine_gap/max"],
        gradients=relative_error([gradients[n] for n in names], [theirs[n] for n in names]),
    )


def check_first_step(ours: StepRecord, theirs: StepRecord, setup: Setup) -> None:
    """End the benchmark unless both began with the same prompt, and gave credit alike."""
    if ours.prompt_ids != theirs.prompt_ids:
        raise SystemExit(
            f"the first prompts differ: {len(ours.prompt_ids)} and {len(theirs.prompt_ids)} "
            "tokens; tokenizer, chat template, tasks and tools must be the same"
        )
    size = setup.group_size
    groups = [theirs.rewards[i : i + size] for i in range(0, len(theirs.rewards), size)]
    credit = [a for group in groups for a in grpo(group, epsilon=setup.advantage_epsilon)]
    error = relative_error([np.asarray(credit)], [np.asarray(theirs.advantages)])
    if not error <= TOLERANCE:
        raise SystemExit(
            f"advantages of TRL's own rewards differ by {error:.2g} of their norm, allowed is "
            f"{TOLERANCE:g}: the settings of the advantage are not the same"
        )


def _trees(groups: Sequence[Sequence[Said]], logprobs: Any) -> list[Tree]:
    """Return the groups as agentrl records them, with TRL's log-probs as those of the engine."""
    trees: list[Tree] = []
    for number, group in enumerate(groups):
        tree = Tree(Task(prompt="agree", id=str(number)))
        for sample, said in enumerate(group):
            root = Node(parent=None, source="prompt", token_ids=said.prompt, turn=0)
            node = tree.share(root)
            known = iter(next(logprobs))
            for turn, part in enumerate(said.parts):
                sampled = turn % 2 == 0
                node = tree.add(
                    Node(
                        parent=node,
                        source="sampled" if sampled else "tool",
                        token_ids=part,
                        turn=(turn + 1) // 2,
                        logprobs=tuple(next(known) for _ in part) if sampled else (),
                        versions=(0,) * len(part) if sampled else (),
                    )
                )
            tree.end(Leaf(node=node, outcome=Finished(said.reward), sample=sample))
        trees.append(tree)
    return trees


def _gradients(
    trainer: PolicyTrainer, trees: Sequence[Tree]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the gradient of a training step in place of taking it, and the step's figures."""
    found: dict[str, np.ndarray] = {}

    def keep(*, step: int = 0) -> Tensor:
        del step
        for name, weight in trainer.model.named_parameters():
            assert weight.grad is not None
            found[name] = weight.grad.numpy().copy()
        return torch.zeros(())

    with patch.object(trainer.optimizer, "update", keep):
        figures = trainer.step(trees)
    return found, figures
