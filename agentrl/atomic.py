"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file so that a crash or a full disk leaves the old one, or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file as `write_text` does; raises `ValueError` for NaN, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
