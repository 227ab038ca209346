"""Rows of a data set: read from a file or the Hugging Face hub, each with its place.

JSON lines, JSON and CSV are read with the standard library, parquet with pyarrow, everything else
with `datasets`. Nothing is kept: what is read twice is `agentrl_envs.dataset.row_tasks`'s concern.
"""

import csv
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError, EnvError, blame
from agentrl.runtime.extras import explain_missing, is_installed
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, check_json, read_json
from agentrl_envs.kinds import DATA_SUFFIXES, is_data_file

ROW_LIMITS = JsonLimits(text_bytes=2**26, values=1_000_000, digits=4_300, repeated_keys=False)
"""Of one row."""
FILE_LIMITS = JsonLimits(text_bytes=2**31, values=100_000_000, digits=4_300, repeated_keys=False)
"""Of a JSON file."""
BATCH_ROWS = 1_024
"""Rows of parquet that are in memory as objects at a time."""
WIDE_ENCODINGS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""By the bytes that a text in them begins with."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row, in JSON's types."""

    place: str
    """Words for errors, such as `line 3 of tasks.jsonl`."""
    values: Mapping[str, Any]
    """Values by column."""
    left_out: tuple[str, ...] = ()
    """Columns whose value JSON has no type for, such as an encoded picture."""
    text: bytes = b""
    """The values as the file has them in JSON, where it does."""


def read_rows(
    path: str, *, split: str | None = None, subset: str | None = None
) -> Iterator[DataRow]:
    """Yield the rows of a file, or of one split of a data set of the hub.

    Raises `ConfigError` that names the file, the row and the way out for what cannot be read, and
    for no rows.
    """
    rows = _read_file(find_file(path)) if is_data_file(path) else _read_hub(path, split, subset)
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise ConfigError(f"{path} has no rows; write one task per row")


def find_file(path: str) -> Path:
    """Return the place of a data file; `ConfigError` where there is none."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"there is no data file {path}; name a file of {', '.join(DATA_SUFFIXES)}, by a "
            "path from the working folder, or a data set of the Hugging Face hub"
        )
    return file


def find_format_fault(path: str) -> str:
    """Return that a file has a format that is not read, or an empty string."""
    if is_data_file(path) or not Path(path).expanduser().is_file():
        return ""
    return (
        f"{path} is no data file that can be read: {', '.join(DATA_SUFFIXES)}; unpack it, or save "
        "its rows as JSON lines, an object per line"
    )


def find_missing_reader(path: str) -> str:
    """Return the reason why a data set cannot be read here, or an empty string."""
    if fault := find_format_fault(path):
        return fault
    module = "datasets"
    if is_data_file(path):
        file = Path(path).expanduser()
        if file.suffix.lower() != ".parquet" or not file.is_file():  # reading says what is wrong
            return ""
        module = "pyarrow"
    if is_installed(module):
        return ""
    way = ", or save it as JSON lines, which needs nothing" if module == "pyarrow" else ""
    return f"{explain_missing(f'reading {path}', module)}{way}"


def _read_file(file: Path) -> Iterator[DataRow]:
    readers = {".parquet": _read_parquet, ".csv": _read_csv, ".json": _read_json}
    reader = readers.get(file.suffix.lower(), _read_json_lines)
    try:
        if reader is not _read_parquet:
            _check_encoding(file)
        yield from reader(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}; make it readable") from error


def _check_encoding(file: Path) -> None:
    with file.open("rb") as stream:
        begin = stream.read(4)
    for mark, encoding in WIDE_ENCODINGS.items():
        if begin.startswith(mark):
            raise ConfigError(f"{file} is {encoding} text; save it as UTF-8")


def _read_json_lines(file: Path) -> Iterator[DataRow]:
    # Bytes, whose lines end at \n alone: a text of JSON may hold U+2028.
    with file.open("rb") as stream:
        number = 0
        while line := stream.readline(ROW_LIMITS.text_bytes + 1):
            number += 1
            if not line.removeprefix(BOM_UTF8).strip():
                continue
            place = f"line {number} of {file}"
            try:
                values = read_json(line, ROW_LIMITS)
            except JsonLimitError as error:
                raise ConfigError(f"{place} cannot be read: {error}") from error
            row = _require_object(place, values, "write one object per line")
            yield DataRow(place, row, text=line.removeprefix(BOM_UTF8).strip())


def _read_json(file: Path) -> Iterator[DataRow]:
    try:
        value = read_json(file.read_bytes(), FILE_LIMITS)
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


def _read_csv(file: Path) -> Iterator[DataRow]:
    with file.open(newline="", encoding="utf-8-sig") as stream, _allow_long_fields():
        reader = csv.reader(stream, strict=True)
        try:
            columns = next(reader, [])
            _check_columns(columns, f"the header of {file}")
            for number, values in enumerate(filter(None, reader), start=1):
                place = f"row {number} of {file}"
                if len(values) != len(columns):
                    raise ConfigError(
                        f"{place} (line {reader.line_num}) has not as many values as the header "
                        f"has columns, which are {', '.join(columns)}; put values with commas into "
                        '"..."'
                    )
                yield DataRow(place, dict(zip(columns, values, strict=True)))
        except csv.Error as error:
            raise ConfigError(
                f"{file} cannot be read as CSV at line {reader.line_num}: {error}; mend it, or "
                "save it as JSON lines"
            ) from error


@contextmanager
def _allow_long_fields() -> Generator[None]:
    """Let a value of CSV be as long as a row of JSON lines may be, in place of 131,072."""
    before = csv.field_size_limit(ROW_LIMITS.text_bytes)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_parquet(file: Path) -> Iterator[DataRow]:
    _require_reader(str(file))
    from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]

    try:
        with cast("Any", parquet.ParquetFile(file)) as opened:
            _check_columns(opened.schema_arrow.names, str(file))
            is_plain = [_is_plain(column.type) for column in opened.schema_arrow]
            names = [
                n for n, plain in zip(opened.schema_arrow.names, is_plain, strict=True) if plain
            ]
            yield from _number_rows(_flatten_batches(opened), str(file), frozenset(names))
    except (ArrowException, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read as parquet: {error}; write it again, or as JSON lines"
        ) from error


def _is_plain(arrow_type: Any) -> bool:
    """Return whether every value of a column is null or a text, whole number or truth value."""
    from pyarrow import types  # pyright: ignore[reportMissingImports]

    kinds: Any = types
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_boolean)
    return any(check(arrow_type) for check in checks)


def _flatten_batches(opened: Any) -> Iterator[Mapping[str, Any]]:
    for batch in opened.iter_batches(batch_size=BATCH_ROWS):
        yield from batch.to_pylist()


def _read_hub(name: str, split: str | None, subset: str | None) -> Iterator[DataRow]:
    _require_reader(name)
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
    yield from _number_rows(loaded, place if split is None else f"{place}, split {split}")


def _require_reader(path: str) -> None:
    if fault := find_missing_reader(path):
        raise ConfigError(fault)


def _check_columns(columns: Sequence[str], where: str) -> None:
    for column, count in Counter(columns).items():
        if count > 1:
            raise ConfigError(f"{where} has {count} columns {column!r}; rename all but one")


def _number_rows(
    rows: Iterable[Mapping[str, Any]], source: str, plain: Collection[str] = ()
) -> Iterator[DataRow]:
    """Yield rows in JSON's types; the columns `plain` have them already."""
    for number, row in enumerate(rows, start=1):
        place = f"row {number} of {source}"
        if len(row) == len(plain):
            yield DataRow(place, row)
            continue
        values: dict[str, Any] = {}
        left_out: list[str] = []
        for name, value in row.items():
            if name in plain:
                values[name] = value
                continue
            try:
                values[name] = convert_value(value)
            except TypeError:
                left_out.append(name)
        try:
            check_json(values, ROW_LIMITS)
        except JsonLimitError as error:
            raise ConfigError(f"{place} cannot be read: {error}") from error
        yield DataRow(place, values, tuple(left_out))


def _require_object(place: str, value: Any, way_out: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise ConfigError(f"{place} is {value!r:.80}, which is no JSON object; {way_out}")


def convert_value(value: Any) -> Any:
    """Return a value of a table in JSON's types: times as text, NaN and infinities as null.

    Raises `TypeError` for what JSON has no type for, such as bytes.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {str(key): convert_value(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [convert_value(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"JSON has no type for {type(value).__name__}")
