"""Hugging Face folders made of GGUF files, whole or not at all."""

import fcntl
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.catalogue import PackagedModel, models_folder
from agentrl.models.place import gguf_fault
from agentrl.models.provenance import RECORD, read_record, record_of
from agentrl.runtime.atomic_files import check_folder, new_folder, write_json


def make_folder(
    model: PackagedModel,
    to: Path | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Return the Hugging Face folder of a packaged model, made unless it is there.

    It lies in `models_folder()` by default, where `policy.path` finds it by the model's name. Two
    processes make it one after the other. Raises `ConfigError` for a package that is missing or
    damaged, and for a place that cannot take it.
    """
    folder = to or models_folder() / model.name
    record = record_of(model)
    if _holds(folder, record):
        return folder
    if problem := check_folder(folder.parent, model.folder_bytes):
        raise ConfigError(
            f"{model.name} needs {model.folder_bytes:,} bytes in {folder}, but {problem}; name "
            "another folder with --to"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder.parent):
        if _holds(folder, record):
            return folder
        file = model.find_installed_file()
        if problem := gguf_fault(file):
            raise ConfigError(f"{model.name}: {problem}")
        model.check(file)
        say(f"{model.name}: reading {file}")
        with new_folder(folder) as partial:
            _convert(file, partial)
            write_json(partial / RECORD, record)
    return folder


def _holds(folder: Path, record: Mapping[str, Any]) -> bool:
    """Return whether the folder is there and of this model; `ConfigError` if it is another's."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if folder.is_dir() and read_record(folder) == record:
        return True
    raise ConfigError(
        f"{folder} already exists and was not made from {record['package']} {record['version']}; "
        "remove it, or name another folder with --to"
    )


def _convert(file: Path, folder: Path) -> None:
    from agentrl.models.folders import load_model, load_tokenizer
    from agentrl.models.quiet import no_bars

    model = load_model(file, dtype="bfloat16", device="cpu")
    with no_bars():
        model.save_pretrained(folder)
    load_tokenizer(file).save_pretrained(folder)


@contextmanager
def _lock_folder(place: Path) -> Generator[None]:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
