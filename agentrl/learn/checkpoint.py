"""Checkpoints: a Hugging Face model folder that also holds what a run needs to go on.

    step-000020/
      config.json model.safetensors(.index.json) tokenizer.json ...   the policy, for any tool
      optimizer.safetensors                              moments and step counts by parameter name;
                                                         optimizer.shards/ of several devices
      critic.safetensors                                 the same of the critic, and its weights
      adapter/                                           LoRA alone, as peft writes it
      ema.safetensors (or .shards/), ema/                the average in float32; as a model folder
      ewma.safetensors or snapshots.safetensors          weights the clip is anchored to
      reference.safetensors                              of the KL penalty, once it was reset
      state.json, random-00001.json ...                  counters, random states, samplers
      ...                                                files of those who wrote them with it
      manifest.json                                      every file's size and SHA-256, the model

A checkpoint appears whole or not at all: it is written beside its place, synced, and renamed.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from agentrl.errors import ConfigError, LearnError
from agentrl.learn.randomness import random_state
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.quiet import no_bars
from agentrl.runtime.atomic_files import apply_umask, disk_advice, load_json, sync_folder, sync_path

FORMAT = 1
"""Format version of the folder; raised when an older reader would misread it."""

FILE_BYTES = 4 * 10**9
"""Most bytes of weights in one file; a larger model comes in several, hashed at a time."""
HASHING_THREADS = 8
"""Files that are hashed at a time, without Python's lock."""

_NAME = re.compile(r"step-(\d{6,})")


@runtime_checkable
class PretrainedFiles(Protocol):
    """A tokenizer or an image processor that can write its files into a folder."""

    def save_pretrained(self, save_directory: Path) -> Any:
        """Write them."""
        ...


@dataclass(slots=True, kw_only=True)
class CheckpointManager:
    """The checkpoints of one run. Only the run writes into `folder`."""

    folder: Path
    keep: int
    tokenizer: PretrainedFiles | None
    images: PretrainedFiles | None = None

    def save(
        self, trainer: PolicyTrainer, *, samplers: Mapping[str, Any], files: Mapping[str, bytes]
    ) -> Path:
        """Write the checkpoint of the trainer's version, drop all but the newest `keep`, return it.

        `samplers` must be JSON; `files` are further ones by name. Raises `LearnError` if it cannot
        be written, on a full disk for example; then nothing of it is left and the older checkpoints
        are as they were.
        """
        final = self.folder / f"step-{trainer.version:06d}"
        partial = self.folder / f".{final.name}.partial"
        others = (self.tokenizer, self.images)
        with _write_or_nothing(partial, final):
            partial.mkdir(parents=True)
            _save_policy(partial, trainer.model, trainer.weights(), others)
            if trainer.ema is not None:
                _save_policy(partial / "ema", trainer.model, trainer.evaluation_weights(), others)
            trainer.write_state(partial)
            state = {
                "step": trainer.version,
                "version": trainer.version,
                "updates": trainer.optimizer.updates,
                "random": random_state(),
                "samplers": samplers,
            }
            _write_json(partial / "state.json", state)
            for name, data in files.items():
                (partial / name).write_bytes(data)
            _write_json(partial / "manifest.json", _manifest(partial, trainer.identity))
            apply_umask(partial)
            sync_folder(partial)
            _replace(partial, final)
        for old in _checkpoints(self.folder)[: -self.keep]:
            shutil.rmtree(old)
        return final

    def restore(self, trainer: PolicyTrainer) -> Mapping[str, Any]:
        """Load the newest checkpoint, if there is one; return what samplers remembered."""
        newest = latest(self.folder)
        return {} if newest is None else load(newest, trainer)

    def read(self, name: str) -> bytes | None:
        """Return a file of the newest checkpoint, None where there is none; `restore` checks it."""
        newest = latest(self.folder)
        file = None if newest is None else newest / name
        return file.read_bytes() if file is not None and file.is_file() else None

    def oldest(self) -> Mapping[str, Any]:
        """Return the sampler states of the oldest checkpoint that is kept."""
        checkpoints = _checkpoints(self.folder)
        return _read_json(checkpoints[0] / "state.json")["samplers"] if checkpoints else {}


def latest(folder: Path) -> Path | None:
    """Return the checkpoint with the highest step in `folder`, or None."""
    _recover(folder)
    checkpoints = _checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def load(checkpoint: Path, trainer: PolicyTrainer) -> Mapping[str, Any]:
    """Put a checkpoint into a trainer and into the process's random states; return the samplers'.

    Everything is read and checked first, so a failure leaves the trainer as it was. Raises
    `LearnError` for a damaged checkpoint, and `ConfigError` for one of another model, naming the
    first key that differs.
    """
    manifest = _read_json(checkpoint / "manifest.json")
    _check_files(checkpoint, manifest)
    _check_model(checkpoint, manifest["model"], trainer.identity)
    state = _read_json(checkpoint / "state.json")
    trainer.read_state(checkpoint)
    return state["samplers"]


def _save_policy(
    folder: Path,
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    others: Sequence[PretrainedFiles | None],
) -> None:
    with no_bars():
        model.save_pretrained(folder, state_dict=dict(weights), max_shard_size=FILE_BYTES)
    _write_index(folder)
    for other in others:
        if other is not None:
            other.save_pretrained(folder)


def _write_index(folder: Path) -> None:
    """Say which file holds the policy: some loaders, vLLM's for one, read every safetensors file of
    a folder without an index, and a checkpoint has others too."""
    file, index = folder / SAFE_WEIGHTS_NAME, folder / SAFE_WEIGHTS_INDEX_NAME
    if index.exists() or not file.exists():  # it is in several files, which have an index
        return
    with safe_open(file, framework="pt") as weights:
        names = sorted(weights.keys())
    size = {"total_size": file.stat().st_size}
    _write_json(index, {"metadata": size, "weight_map": dict.fromkeys(names, file.name)})


@contextmanager
def _write_or_nothing(partial: Path, final: Path) -> Generator[None]:
    _recover(final.parent)
    # Also one of a step that a killed run has not come to again.
    for folder in final.parent.glob(".step-*.partial"):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise LearnError(
            f"the checkpoint {final} could not be written: {error}; older checkpoints are "
            f"unchanged. {disk_advice(error)}, and resume the run"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, final: Path) -> None:
    """Put `partial` in the place of `final`, which may exist; `_recover` mends a crash within."""
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    sync_path(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _recover(folder: Path) -> None:
    for replaced in folder.glob(".step-*.replaced"):
        final = replaced.with_name(replaced.name[1:].removesuffix(".replaced"))
        if final.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(final)


def _checkpoints(folder: Path) -> list[Path]:
    steps = {int(m[1]): p for p in folder.glob("step-*") if (m := _NAME.fullmatch(p.name))}
    return [steps[step] for step in sorted(steps)]


def _manifest(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in files]
    return {
        "format": FORMAT,
        "model": identity,
        "files": dict(zip(names, _fingerprints(files), strict=True)),
    }


def _fingerprints(paths: Sequence[Path]) -> list[dict[str, Any] | None]:
    """Return size and SHA-256 of each file, None for one that is not there; several at a time."""
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        return list(pool.map(_fingerprint, paths))


def _fingerprint(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _check_files(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise LearnError(
            f"{checkpoint} has format {manifest.get('format')!r}, but this version reads {FORMAT}; "
            "use the version of agentrl that wrote it"
        )
    entries: Mapping[str, Any] = manifest["files"]
    paths = [checkpoint / name for name in entries]
    for path, entry, fingerprint in zip(paths, entries.values(), _fingerprints(paths), strict=True):
        if fingerprint != entry:
            raise LearnError(
                f"{path} is damaged: {fingerprint}, but the manifest has {entry}; remove "
                f"{checkpoint.name} to resume from the checkpoint before it"
            )


def _check_model(checkpoint: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for part, spec in ours.items():
        other = theirs.get(part, {})
        for key in sorted(other.keys() | spec.keys()):
            if other.get(key) != spec.get(key):
                raise ConfigError(
                    f"{checkpoint} is of another model: {part} {key!r} is {other.get(key)!r} there "
                    f"and {spec.get(key)!r} here; resume with the run's original config, or start "
                    "a new run"
                )


def _read_json(path: Path) -> dict[str, Any]:
    advice = f"remove {path.parent.name} to resume from the checkpoint before it"
    return load_json(path, dict, advice=advice, error=LearnError)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
