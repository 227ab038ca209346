"""Rows of a data set: read from a file or the Hugging Face hub, each with its place.

JSON lines, JSON and CSV are read with the standard library, parquet with pyarrow, everything else
with `datasets`.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError, EnvError, blame
from agentrl.runtime.distribution import install_command
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json
from agentrl.runtime.machine import is_installed
from agentrl_envs.kinds import DATA_SUFFIXES, is_data_file

ROW_LIMITS = JsonLimits(text_bytes=2**26, values=1_000_000, digits=4_300)
"""Of one JSON line."""
FILE_LIMITS = JsonLimits(text_bytes=2**31, values=100_000_000, digits=4_300)
"""Of a JSON file."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row, in JSON's types."""

    place: str
    """Words for errors, such as `line 3 of tasks.jsonl`."""
    values: Mapping[str, Any]
    """Values by column. What JSON has no type for, such as an encoded picture, is left out."""


def read_rows(path: str, *, split: str | None = None, subset: str | None = None) -> list[DataRow]:
    """Return the rows of a file, or of one split of a data set of the hub.

    Rows are read once per process and state of a file. Raises `ConfigError` that names the file,
    the row and the way out for what cannot be read, and for no rows.
    """
    if not is_data_file(path):
        rows = _read_hub(path, split, subset)
    else:
        file = Path(path).expanduser()
        if not file.is_file():
            raise ConfigError(
                f"there is no data file {path}; name a file of {', '.join(DATA_SUFFIXES)}, by a "
                "path from the working folder, or a data set of the Hugging Face hub"
            )
        state = file.stat()
        rows = _read_file(file, state.st_mtime_ns, state.st_size)
    if not rows:
        raise ConfigError(f"{path} has no rows; write one task per row")
    return rows


def find_missing_reader(path: str) -> str:
    """Return the reason why a data set cannot be read here, or an empty string."""
    module = "datasets"
    if is_data_file(path):
        if Path(path).suffix.lower() != ".parquet":
            return ""
        module = "pyarrow"
    if is_installed(module):
        return ""
    way = ", or save it as JSON lines, which needs nothing" if module == "pyarrow" else ""
    return f"{path} is read with {module}, which is not installed: {install_command('data')}{way}"


@lru_cache(maxsize=8)
def _read_file(file: Path, mtime_ns: int, size_bytes: int) -> list[DataRow]:
    del mtime_ns, size_bytes  # of the key: another state is another file
    if file.suffix.lower() == ".parquet":
        return _read_parquet(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}; save it as UTF-8") from error
    readers = {".csv": _read_csv, ".json": _read_json}
    return list(readers.get(file.suffix.lower(), _read_json_lines)(file, text))


def _read_json_lines(file: Path, text: str) -> Iterator[DataRow]:
    # No `splitlines`: a text of JSON may hold U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number} of {file}"
        try:
            values = read_json(line, ROW_LIMITS)
        except JsonLimitError as error:
            raise ConfigError(f"{place} cannot be read: {error}") from error
        yield DataRow(place, _require_object(place, values, "write one object per line"))


def _read_json(file: Path, text: str) -> Iterator[DataRow]:
    try:
        value = read_json(text, FILE_LIMITS)
    except JsonLimitError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if isinstance(value, dict):
        lists = [one for one in cast("dict[str, Any]", value).values() if isinstance(one, list)]
        value = lists[0] if len(lists) == 1 else None
    if not isinstance(value, list):
        raise ConfigError(
            f"{file} is neither a list of objects nor an object with one such list; write "
            '[{"question": ..., "answer": ...}, ...], or JSON lines in a file that ends on .jsonl'
        )
    for number, values in enumerate(cast("list[Any]", value), start=1):
        place = f"row {number} of {file}"
        yield DataRow(place, _require_object(place, values, "write one object per row"))


def _read_csv(file: Path, text: str) -> Iterator[DataRow]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, values in enumerate(reader, start=1):
            place = f"row {number} of {file}"
            if None in values or None in values.values():
                raise ConfigError(
                    f"{place} (line {reader.line_num}) has not as many values as the header has "
                    f"columns, which are {', '.join(reader.fieldnames or ())}; put values with "
                    'commas into "..."'
                )
            yield DataRow(place, values)
    except csv.Error as error:
        raise ConfigError(
            f"{file} cannot be read as CSV after line {reader.line_num}: {error}; mend it, or "
            "save it as JSON lines"
        ) from error


def _read_parquet(file: Path) -> list[DataRow]:
    _require_reader(str(file))
    from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]

    try:
        table: Any = parquet.read_table(file)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as parquet: {error}") from error
    return _number_rows(rows, str(file))


def _read_hub(name: str, split: str | None, subset: str | None) -> list[DataRow]:
    _require_reader(name)
    return _load_hub(name, split, subset)


@lru_cache(maxsize=8)
def _load_hub(name: str, split: str | None, subset: str | None) -> list[DataRow]:
    from datasets import load_dataset  # pyright: ignore[reportMissingImports]

    place = name if subset is None else f"{name} ({subset})"
    try:
        with blame(EnvError, f"the data set {place} cannot be loaded"):
            loaded: Any = load_dataset(name, subset, split=split)
    except EnvError as error:
        raise ConfigError(
            f"{error}; check its name, `subset` and `split`, or name a file that is here"
        ) from error
    if isinstance(loaded, dict):
        names = list(cast("dict[str, Any]", loaded))
        if len(names) > 1:
            raise ConfigError(
                f"the data set {place} has the splits {', '.join(names)}; set split: NAME, or "
                "split: {train: NAME, heldout: NAME}"
            )
        loaded = loaded[names[0]]
    return _number_rows(loaded, place if split is None else f"{place}, split {split}")


def _require_reader(path: str) -> None:
    if fault := find_missing_reader(path):
        raise ConfigError(fault)


def _number_rows(rows: Iterable[Mapping[str, Any]], source: str) -> list[DataRow]:
    return [
        DataRow(
            f"row {number} of {source}",
            {name: _to_json(value) for name, value in row.items() if not _is_binary(value)},
        )
        for number, row in enumerate(rows, start=1)
    ]


def _require_object(place: str, value: Any, way_out: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise ConfigError(f"{place} is {value!r:.80}, which is no JSON object; {way_out}")


def _is_binary(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_binary, cast("Mapping[Any, object]", value).values()))
    if isinstance(value, list):
        return any(map(_is_binary, cast("list[object]", value)))
    return not isinstance(value, str | int | float | None | date | time | timedelta | Decimal)


def _to_json(value: Any) -> Any:
    """Return a value in JSON's types; the times of parquet become text."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {str(key): _to_json(item) for key, item in pairs}
    if isinstance(value, list):
        return [_to_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, timedelta | Decimal) else value
