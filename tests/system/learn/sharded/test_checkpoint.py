"""Checkpoints of a trainer on several devices, and runs that go on with another number of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.learn.checkpoint import latest, load
from agentrl.learn.dtensor import gather_tensor
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from tests.support.examples import spread_cases
from tests.support.learning import model_of, save, trees_of
from tests.support.sharded import World, world

STEPS = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world() as opened:
        yield opened


def section(**changes: Any) -> LearnSection:
    return LearnSection.model_validate(
        {"optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01}, "ema": {"decay": 0.5}}
        | changes
    )


def go(
    ranks: TrainerRanks, model: PreTrainedModel, config: LearnSection, folder: Path, *, steps: int
) -> dict[str, Tensor]:
    """Go on from the newest checkpoint by so many steps and write another; return everything."""
    trainer = PolicyTrainer(model, config, seed=1, steps=6, ranks=ranks)
    if (newest := latest(folder)) is not None and ranks.rank == 0:
        load(newest, trainer)
    elif newest is not None:
        trainer.read_state(newest)
    for _ in range(steps):
        trainer.step(trees_of(3, seed=trainer.version, version=trainer.version))
    if ranks.rank == 0:
        save(folder, trainer, keep=9)
    else:  # what the other ranks do while the first one saves
        trainer.weights()
        trainer.evaluation_weights()
        trainer.write_state(folder / f".step-{trainer.version:06d}.partial")
    assert trainer.ema is not None
    parts = {
        "": trainer.optimizer.weights(),
        "state.": trainer.optimizer.state(),
        "ema.": trainer.ema.state(),
    }
    return {
        f"{p}{name}": gather_tensor(v).clone()
        for p, named in parts.items()
        for name, v in named.items()
        if not name.startswith("master.")  # they are the weights
    }


def on(
    ranks: World,
    size: int,
    config: LearnSection,
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Do `go` on so many ranks."""
    if size == 1:
        return go(ALONE, model_of(seed), config, folder, steps=steps)
    found = ranks.run(_go, model_of(seed), config, folder, steps, size=size)
    for other in found[1:]:
        assert_equal(other, found[0])
    return found[0]


def _go(
    ranks: TrainerRanks, model: PreTrainedModel, config: LearnSection, folder: Path, steps: int
) -> dict[str, Tensor]:
    return go(ranks, model, config, folder, steps=steps)


def assert_equal(own: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert own.keys() == wanted.keys()
    assert not [name for name in wanted if not torch.equal(own[name], wanted[name])]


def assert_near(own: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rel: float) -> None:
    assert own.keys() == wanted.keys()
    far = {
        name: float((own[name] - value).norm() / value.norm())
        for name, value in wanted.items()
        if (own[name] - value).norm() > rel * max(float(value.norm()), 1e-7)
    }
    assert not far


@pytest.mark.parametrize("size", spread_cases([2, 3], 1))
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(
    ranks: World, tmp_path: Path, size: int
) -> None:
    unbroken = on(ranks, size, section(), tmp_path / "whole", steps=2 * STEPS)
    on(ranks, size, section(), tmp_path / "parts")
    # The weights that it begins with are others: all of them come from the checkpoint.
    resumed = on(ranks, size, section(), tmp_path / "parts", seed=9)
    assert_equal(resumed, unbroken)


def _resume(ranks: TrainerRanks, model: PreTrainedModel, folder: Path) -> list[float]:
    """Return the losses of steps from the newest checkpoint on."""
    trainer = PolicyTrainer(model, section(), seed=1, steps=6, ranks=ranks)
    newest = latest(folder)
    assert newest is not None
    trainer.read_state(newest)
    seeds = range(trainer.version, trainer.version + STEPS)
    return [trainer.step(trees_of(3, seed=n, version=n))["loss"] for n in seeds]


def test_a_checkpoint_of_two_ranks_goes_on_with_the_same_loss_on_one_and_on_two(
    ranks: World, tmp_path: Path
) -> None:
    on(ranks, 2, section(), tmp_path)
    alone = _resume(ALONE, model_of(9), tmp_path)
    for losses in ranks.run(_resume, model_of(9), tmp_path, size=2):
        assert losses == pytest.approx(alone, rel=0, abs=1e-6)
    fresh = PolicyTrainer(model_of(9), section(), seed=1, steps=6).step(trees_of(3, seed=STEPS))
    assert fresh["loss"] != pytest.approx(alone[0], rel=0, abs=1e-6)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize(
    "changes",
    spread_cases([{}, {"lora": {"rank": 2}}, {"precision": "bfloat16"}], 1),
    ids=["all", "lora", "bf16"],
)
def test_a_run_goes_on_with_another_number_of_devices(
    ranks: World, tmp_path: Path, before: int, after: int, changes: Mapping[str, Any]
) -> None:
    config = section(**changes)
    first = on(ranks, before, config, tmp_path)
    seed = 0 if "lora" in changes else 9
    assert_equal(on(ranks, after, config, tmp_path, steps=0, seed=seed), first)


def test_it_goes_on_as_one_device_would(ranks: World, tmp_path: Path) -> None:
    alone = on(ranks, 1, section(), tmp_path / "alone", steps=2 * STEPS)
    on(ranks, 3, section(), tmp_path / "others")
    assert_near(on(ranks, 2, section(), tmp_path / "others"), alone, 1e-3)


def test_the_policy_is_a_model_folder(ranks: World, tmp_path: Path) -> None:
    kept = on(ranks, 2, section(), tmp_path)
    folder = latest(tmp_path)
    assert folder is not None
    loaded = load_model(folder, dtype="float32", device="cpu")
    assert type(loaded) is type(model_of())
    assert_equal({n: p.detach() for n, p in loaded.named_parameters()}, _parameters(kept, ""))
    average = load_model(folder / "ema", dtype="float32", device="cpu")
    assert_equal({n: p.detach() for n, p in average.named_parameters()}, _parameters(kept, "ema."))


def _parameters(kept: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    names = [name for name, _ in model_of().named_parameters()]
    return {name: kept[f"{prefix}{name}"] for name in names}
