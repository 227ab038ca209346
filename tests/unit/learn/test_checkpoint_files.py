"""A checkpoint whose weights are in several files, each with its own entry in the manifest."""

import json
from pathlib import Path

import pytest
import torch

from agentrl.config.learn import LearnSection
from agentrl.errors import LearnError
from agentrl.learn import checkpoint
from agentrl.learn.checkpoint import load
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.catalogue import sha256_of
from tests.support.learning import model_of, save


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkpoint of a model that is larger than a file may be."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 4000)
    save(tmp_path, PolicyTrainer(model_of(), LearnSection(), seed=0), keep=1)
    return tmp_path / "step-000000"


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def test_every_file_has_its_own_hash_in_the_manifest(made: Path) -> None:
    assert len(weight_files(made)) > 2
    files = json.loads((made / "manifest.json").read_text())["files"]
    paths = [path for path in made.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert files == {
        str(path.relative_to(made)): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in paths
    }


def test_a_trainer_takes_over_what_is_in_several_files(made: Path) -> None:
    other = PolicyTrainer(model_of(9), LearnSection(), seed=0)
    load(made, other)
    wanted = model_of().state_dict()
    assert all(torch.equal(wanted[name], value) for name, value in other.weights().items())


@pytest.mark.parametrize("removes", [True, False])
def test_the_file_that_is_damaged_is_named(made: Path, removes: bool) -> None:
    file = weight_files(made)[1]
    if removes:
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    trainer = PolicyTrainer(model_of(9), LearnSection(), seed=0)
    with pytest.raises(LearnError, match=file.name):
        load(made, trainer)
