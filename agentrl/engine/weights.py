"""Weights as they come: a state dict, or a folder of safetensors."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from agentrl.weight_sync.adapters import find_adapters

Weights = Mapping[str, Tensor] | str | PathLike[str]
"""A state dict with the Hugging Face parameter names, or a folder (or file) of safetensors."""


def read_weights(weights: Weights, *, device: torch.device | None = None) -> Mapping[str, Tensor]:
    """Return the state dict; a folder's files are read and joined.

    Adapters are merged on `device`, or where their base is.
    """
    if isinstance(weights, Mapping):
        adapted = find_adapters(weights)
        return weights if adapted is None or device is None else adapted.to_device(device)
    from safetensors.torch import load_file

    path = Path(weights)
    files = _files_in(path) if path.is_dir() else [path]
    if not files or not path.exists():
        raise FileNotFoundError(
            f"no *.safetensors in {path}; save the model with save_pretrained, or load a state dict"
        )
    state: dict[str, Tensor] = {}
    for file in files:
        state.update(load_file(file))
    return state


def shapes_in(folder: str | PathLike[str]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the weights in a folder of safetensors, which are not read."""
    shapes: set[tuple[int, ...]] = set()
    for file in _files_in(Path(folder)):
        with safe_open(file, framework="pt") as opened:
            names: list[str] = opened.keys()
            shapes.update(tuple(opened.get_slice(name).get_shape()) for name in names)
    return frozenset(shapes)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a model's weights: those of its index, or all; a checkpoint has more."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    return [
        folder / name for name in sorted({*json.loads(index.read_text())["weight_map"].values()})
    ]


def take(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """Return one weight, or raise `ValueError` naming what is missing or of another shape."""
    if name not in state:
        names = ", ".join(list(state)[:3])
        raise ValueError(
            f"the weights have no {name!r} (they have {names}, ...); give the state dict of the "
            "model the engine was created with, under its Hugging Face names"
        )
    size = tuple(state[name].shape)
    if size != shape:
        raise ValueError(
            f"{name!r} has shape {size}, but the engine's model has {shape}; these weights belong "
            "to another model"
        )
    return state[name]
