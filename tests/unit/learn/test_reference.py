"""The reference of the KL penalty is reset, and a checkpoint holds it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.learn import AdamWSection, KlSection, LearnSection, LoraSection
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.checkpoint import load
from agentrl.learn.trainer import PolicyTrainer
from tests.support.learning import model_of, save, trees_of

LORA = {"lora": LoraSection(rank=3, alpha=5.0)}


def trainer_of(reset_every: int | None, **changes: Any) -> PolicyTrainer:
    kl = KlSection(coefficient=1e-3, reset_every=reset_every)
    config = LearnSection(optimizer=AdamWSection(learning_rate=0.02), kl=kl, **changes)
    return PolicyTrainer(model_of(), config, seed=0)


def kl_of_step(trainer: PolicyTrainer) -> float:
    trees = trees_of(version=trainer.version, gap=0.3, seed=trainer.version)
    return trainer.step(trees)["kl/reference"]


@pytest.mark.parametrize("changes", [{}, LORA, {"precision": "bfloat16"}], ids=repr)
def test_the_kl_is_zero_after_a_reset_and_not_before(changes: dict[str, Any]) -> None:
    trainer = trainer_of(2, **changes)
    kls = [kl_of_step(trainer) for _ in range(6)]
    assert kls[::2] == pytest.approx([0.0] * 3, abs=1e-7)
    assert min(kls[1::2]) > 1e-5


def test_without_resets_the_reference_stays() -> None:
    trainer = trainer_of(None)
    kls = [kl_of_step(trainer) for _ in range(4)]
    assert kls[0] == pytest.approx(0.0, abs=1e-7)
    assert min(kls[1:]) > 1e-4


@pytest.mark.parametrize("changes", [{}, LORA], ids=["all weights", "lora"])
def test_a_run_that_goes_on_has_the_reference_of_the_last_reset(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    whole, stopped = trainer_of(2, **changes), trainer_of(2, **changes)
    for _ in range(3):
        assert kl_of_step(whole) == kl_of_step(stopped)
    resumed = trainer_of(2, **changes)
    load(save(tmp_path, stopped), resumed)
    expected = [kl_of_step(whole) for _ in range(3)]
    assert [kl_of_step(resumed) for _ in range(3)] == expected
    assert expected[0] > 1e-5
    for name, value in whole.weights().items():
        assert torch.equal(resumed.weights()[name], value)


def test_a_checkpoint_holds_a_reference_from_the_first_reset_on(tmp_path: Path) -> None:
    trainer = trainer_of(2)
    kl_of_step(trainer)
    early = save(tmp_path / "early", trainer)
    assert not (early / "reference.safetensors").exists()
    load(early, trainer_of(2))
    kl_of_step(trainer)
    folder = save(tmp_path / "late", trainer)
    assert (folder / "reference.safetensors").exists()
    (folder / "reference.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"without reference, but the config has learn\.kl\.res"):
        trainer_of(2).read_state(folder)


def test_several_devices_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("env: {id: demo/Multiply-v0}\n")
    keys = {"learn.kl": {"reset_every": 9}, "learn.devices.count": 2}
    with pytest.raises(ConfigError, match=r"learn\.kl\.reset_every supports only one device"):
        load_config(file, keys)
