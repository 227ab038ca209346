"""State of a trainer besides the policy, to a checkpoint and back.

One device writes files of safetensors, several write shards (torch.distributed.checkpoint), and any
number of devices reads both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.learn.dtensor import alike, local
from agentrl.learn.lora import is_adapted, load_adapter, save_adapter
from agentrl.learn.quiet import no_bars
from agentrl.learn.randomness import random_state, set_random_state
from agentrl.models.folders import load_model
from agentrl.runtime.seeds import derive

if TYPE_CHECKING:
    from agentrl.learn.ranks import TrainerRanks
    from agentrl.learn.trainer import PolicyTrainer


def write_state(trainer: "PolicyTrainer", folder: Path) -> None:
    """Write everything but the policy and the counters. A collective; all ranks see `folder`."""
    ranks = trainer.ranks
    if ranks.rank:
        # Before the collectives: after the last of them the first rank renames the folder.
        (folder / _random(ranks)).write_text(json.dumps(random_state()), encoding="utf-8")
    if is_adapted(trainer.model):
        save_adapter(trainer.model, folder / "adapter" if ranks.rank == 0 else None)
    if trainer.ema is not None:
        ranks.write(folder, "ema", trainer.ema.state())
    ranks.write(folder, "optimizer", trainer.optimizer.state(masters=trainer.rounds))
    if ranks.rank:
        return
    if trainer.critic is not None:
        save_file(_contiguous(trainer.critic.state()), folder / "critic.safetensors")
    if anchor := trainer.anchor.state():
        save_file(_contiguous(anchor), folder / f"{trainer.anchor.name}.safetensors")


def read_state(trainer: "PolicyTrainer", checkpoint: Path) -> None:
    """Take over a checkpoint whose files and model were found to be right. A collective.

    Everything is read before anything is changed. Raises `ConfigError` for what the config asks for
    and the checkpoint has not.
    """
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    weights = trainer.optimizer.weights()
    kept = checkpoint / f"{trainer.anchor.name}.safetensors"
    anchor = load_file(kept) if kept.is_file() else {}
    moments = trainer.ranks.read(
        checkpoint, "optimizer", {n: weights[n.partition(".")[2]] for n in _kinds(weights)}
    )
    critic = dict[str, Tensor]()
    if trainer.critic is not None:
        _check_there(checkpoint, "critic", "learn.critic")
        critic = load_file(checkpoint / "critic.safetensors")
        trainer.critic.check_state(critic)
    average = dict[str, Tensor]()
    if trainer.ema is not None:
        _check_there(checkpoint, "ema", "learn.ema")
        average = trainer.ranks.read(checkpoint, "ema", weights)
    if is_adapted(trainer.model):
        load_adapter(trainer.model, checkpoint / "adapter")
    else:
        _load_weights(trainer, checkpoint)
    if trainer.ema is not None:
        trainer.ema.load_state(average)
    trainer.optimizer.load_state(moments, updates=state["updates"])
    if trainer.critic is not None:
        trainer.critic.load_state(critic)
    trainer.anchor.load_state(anchor)
    trainer.version = state["version"]
    own = checkpoint / _random(trainer.ranks)
    if trainer.ranks.rank == 0:
        set_random_state(state["random"])
    elif own.is_file():
        set_random_state(json.loads(own.read_text(encoding="utf-8")))
    else:  # it was written by fewer ranks
        torch.manual_seed(derive(trainer.version, "rank", trainer.ranks.rank))


def _load_weights(trainer: "PolicyTrainer", checkpoint: Path) -> None:
    model = trainer.model
    if trainer.ranks.size == 1:
        with no_bars():
            loaded = type(model).from_pretrained(checkpoint, dtype=model.dtype)
        model.load_state_dict(loaded.state_dict())
        return
    found = load_model(checkpoint, dtype="float32", device="cpu").state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            local(value).copy_(local(alike(found[name].to(value.dtype), value)))


def _kinds(weights: Mapping[str, Tensor]) -> list[str]:
    kinds = ("exp_avg", "exp_avg_sq", "master")
    return [f"{kind}.{name}" for name in weights for kind in kinds]


def _check_there(checkpoint: Path, name: str, key: str) -> None:
    """Raise `ConfigError` where a part is missing that is only there if the config asked for it."""
    if not any((checkpoint / f"{name}{end}").exists() for end in (".safetensors", ".shards")):
        raise ConfigError(
            f"{checkpoint} was written without {name}, and the config has {key}; resume with "
            "the config the run was started with, or start a new run"
        )


def _random(ranks: "TrainerRanks") -> str:
    return f"random-{ranks.rank:05d}.json"


def _contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in state.items()}
