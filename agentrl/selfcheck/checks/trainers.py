"""The trainer on two ranks against one, and a checkpoint that a new trainer goes on from."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.checkpoint import CheckpointManager
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from agentrl.run.build import build_trainer
from agentrl.run.policy_model import load_policy
from agentrl.selfcheck.checks.policies import build_batch, write_policy
from agentrl.selfcheck.context import CheckContext, CheckSkipped

UPDATE_LIMIT = 0.05
"""Largest distance between two updates of the weights, relative to one: the first steps of AdamW
have the size of the learning rate, so that a gradient of almost 0 goes either way."""
NORM_LIMIT = 1e-3
"""Largest relative difference of gradient norms."""
RANKS = 2
START_S = 90.0


def check_ranks(context: CheckContext) -> None:
    """Take two steps on two ranks and on one, and compare gradients and weights.

    On a CPU the ranks speak over Gloo, on GPUs over NCCL.
    """
    if context.device != "cpu" and torch.cuda.device_count() < RANKS:
        count = torch.cuda.device_count()
        raise CheckSkipped(f"{RANKS} ranks need {RANKS} GPUs, and {count} can be used here")
    folder = write_policy(context.folder / "policy")
    alone, metrics_alone = _train(context, folder, devices=1)
    together, metrics_together = _train(context, folder, devices=RANKS)
    start = _copy_weights(load_model(folder, dtype="float32", device="cpu").state_dict())
    context.expect("update", compare_updates(start, alone, together), at_most=UPDATE_LIMIT)
    norms = (metrics_alone["grad/norm"], metrics_together["grad/norm"])
    context.expect("gradient_norm", abs(norms[0] - norms[1]) / norms[0], at_most=NORM_LIMIT)


def _train(
    context: CheckContext, folder: Path, *, devices: int
) -> tuple[dict[str, Tensor], Mapping[str, float]]:
    """Return the weights after two steps, and the metrics of the first."""
    config = build_config(folder, device=context.device, devices=devices)
    policy = load_policy(config, folder)
    start_s = time.monotonic()
    trainer = build_trainer(config, policy)
    try:
        context.record(f"ranks_{devices}.start_seconds", round(time.monotonic() - start_s, 2))
        first = trainer.learn(build_batch(trainer.logprobs))
        trainer.learn(build_batch(trainer.logprobs, seed=7))
        return _copy_weights(trainer.weights()), first
    finally:
        trainer.close()


def build_config(folder: Path, *, device: str, devices: int = 1) -> RunConfig:
    """Return the config of a run that trains a policy."""
    return RunConfig.model_validate(
        {
            "run": {"name": "selfcheck", "steps": 2, "threads": 1, "folder": str(folder.parent)},
            "env": {"id": "selfcheck"},
            "policy": {"path": str(folder), "device": device},
            "learn": {
                "devices": {"count": devices, "start_s": START_S},
                "optimizer": {"learning_rate": 1e-3},
            },
        }
    )


def _copy_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().float().cpu().clone() for name, value in weights.items()}


def compare_updates(
    start: Mapping[str, Tensor], one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> float:
    """Return the distance between two updates of the same weights, relative to the first."""
    apart = sum(float((one[name] - other[name]).norm()) ** 2 for name in start)
    moved = sum(float((one[name] - start[name]).norm()) ** 2 for name in start)
    return (apart / moved) ** 0.5 if moved else float("inf")


def check_checkpoint(context: CheckContext) -> None:
    """Save after one step, load into a new trainer, and take the second step with both."""
    folder = write_policy(context.folder / "policy")
    batches = [build_batch(_open(context, folder).logprobs, seed=seed) for seed in (0, 7)]
    manager = CheckpointManager(folder=context.folder / "checkpoints", keep=1, tokenizer=None)
    trainer = _open(context, folder)
    trainer.learn(batches[0])
    start_s = time.monotonic()
    place = manager.save(trainer, samplers={}, files={})
    context.record("save_seconds", round(time.monotonic() - start_s, 3))
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    context.record("mib", round(size / 2**20, 2))
    saved = _copy_weights(trainer.weights())
    resumed = _open(context, folder)
    start_s = time.monotonic()
    manager.restore(resumed)
    context.record("load_seconds", round(time.monotonic() - start_s, 3))
    restored = _copy_weights(resumed.weights())
    unequal = sum(not torch.equal(saved[name], restored[name]) for name in saved)
    context.expect("unequal_weights", unequal, at_most=0)
    context.expect("version_error", abs(resumed.version - 1), at_most=0)
    ends = [_finish(each, batches[1]) for each in (trainer, resumed)]
    # Kernels of a GPU may add in another order each time.
    limit = 0.0 if context.device == "cpu" else UPDATE_LIMIT
    context.expect("second_step", compare_updates(saved, *ends), at_most=limit)


def _open(context: CheckContext, folder: Path) -> PolicyTrainer:
    config = build_config(folder, device=context.device)
    model = load_model(folder, dtype="float32", device=context.device)
    return PolicyTrainer.from_config(model, config)


def _finish(trainer: PolicyTrainer, batch: TrainingBatch) -> dict[str, Tensor]:
    trainer.learn(batch)
    return _copy_weights(trainer.weights())
