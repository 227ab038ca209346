"""Files of the model that `policy.path` names."""

import os
from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.models.catalogue import MODELS, models_folder
from agentrl.runtime.extras import find_missing

MAGIC = b"GGUF"
ADAPTER_CONFIG = "adapter_config.json"
"""File of peft, in the folder of an adapter."""
ADAPTED = (
    f"it holds a LoRA adapter ({ADAPTER_CONFIG}) beside its weights, which transformers puts on "
    "them and freezes: merge it (peft's merge_and_unload) and save the model, or remove it"
)
"""Fault of a model with an adapter."""


def policy_place(path: Path | str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the folder, the GGUF file or the hub name that a policy is loaded from.

    A path that exists stands for itself; the name of a packaged model for the folder that
    `agentrl model get` made of it. Raises `ConfigError` where it has made none.
    """
    text = str(path)
    place = Path(text).expanduser()
    if place.exists():
        return str(place)
    if (model := MODELS.get(text)) is None:
        return text
    folder = models_folder(environment) / model.name
    if folder.is_dir():
        return str(folder)
    raise ConfigError(
        f"{model.name} does not exist yet; create it with agentrl model get {model.name}"
    )


def is_gguf(path: Path | str) -> bool:
    """Return whether a path is a GGUF file, by its name."""
    return Path(path).suffix == ".gguf" and Path(path).is_file()


def gguf_fault(file: Path) -> str:
    """Return the reason that a GGUF file cannot be read here, or an empty string where it may."""
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return f"{file.name} is not a GGUF file: it does not start with GGUF"
    return next(find_missing("reading a GGUF file", "gguf"), "")
