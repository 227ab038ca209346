"""Origin of a policy, as a run and a model folder record it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.models.catalogue import PackagedModel, sha256_of
from agentrl.models.place import is_gguf
from agentrl.runtime.json_limits import JsonLimitError, read_json

RECORD = "agentrl_model.json"
"""Name of the record in a folder that `agentrl model get` made."""
HASHED_BYTES = 2**31
"""Weights of up to so many bytes get a digest: a few seconds. Larger ones get their size."""


def record_of(model: PackagedModel) -> dict[str, str]:
    """Return the record of a packaged model's origin, for the folder made of it."""
    return {
        "name": model.name,
        "source": model.source,
        "license": model.license,
        "package": model.package,
        "version": model.version,
        "file": model.file,
        "file_sha256": model.sha256,
    }


def provenance(place: Path | str) -> dict[str, Any]:
    """Return the provenance of a folder, a GGUF file or a hub name that a policy comes from."""
    path = Path(place)
    if is_gguf(path):
        return {"path": str(place), **_weights([path])}
    if not path.is_dir():
        return {"path": str(place)}
    files = sorted(file for file in path.glob("*.safetensors") if file.is_file())
    return {"path": str(place), **read_record(path), **_weights(files)}


def read_record(folder: Path) -> Mapping[str, Any]:
    """Return the record of `agentrl model get` in a folder; empty for one that others made."""
    record = folder / RECORD
    if not record.is_file():
        return {}
    try:
        content = read_json(record.read_bytes())
    except JsonLimitError as error:
        raise ConfigError(
            f"{record} is damaged: {error}; remove {folder}, and create it again"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{record} does not contain a JSON object; remove {folder}, and create it again"
        )
    return cast("dict[str, Any]", content)


def _weights(files: list[Path]) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in files)
    if size > HASHED_BYTES:
        return {"bytes": size}
    return {"bytes": size, "sha256": {file.name: sha256_of(file) for file in files}}
