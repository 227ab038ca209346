"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file so that a crash or a full disk leaves the old one, or none."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_text` does."""
    with _replacing(path) as partial:
        _write(partial, data)


@contextmanager
def lines_file(path: Path) -> Generator[Callable[[str], None]]:
    """Give what writes pieces of a text, which are the file once the block ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as partial, partial.open("w", encoding="utf-8") as file:

        def write(piece: str) -> None:
            file.write(piece)

        yield write
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(partial):
            error.filename = str(path)
        raise


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file as `write_text` does; raises `ValueError` for NaN, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
