"""Tasks made of the rows of a data set: prompt, answer, split.

Rows are read once per process and state of their files, and kept as JSON texts in a file without a
name: every environment of a process shares them, and a task is made when it is asked for.
"""

import json
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from random import Random
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, cast
from weakref import finalize

import numpy as np

from agentrl.errors import ConfigError
from agentrl.message import Message, Role, ToolCall
from agentrl.runtime.json_limits import read_json
from agentrl.runtime.seeds import derive
from agentrl.task import SPLITS, Split, Task, split_of
from agentrl_envs.dataset.final_answers import find_reference_fault
from agentrl_envs.dataset.rows import DataRow, find_file, read_rows
from agentrl_envs.kinds import is_data_file

ROLES: Mapping[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}
"""Roles of message lists, those of ShareGPT's form too."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
SPLIT_COLUMN = "split"
"""Column of a file that has the names of splits, where no other is named."""
SHOWN_NAMES = 20
"""Names of splits in an error."""
SUGGEST_ROWS = 1000
"""Rows that are looked at for a `heldout_fraction` that leaves no split empty."""
_FRACTIONS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 0.9, 0.05, 0.02, 0.01)
KEPT_SOURCES = 4
"""Data sets that a process keeps in memory."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_reading = Lock()
"""Held while rows are read, so that two threads do not read the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Place of a data set, and which of its rows are in which split."""

    path: str | Mapping[str, str]
    """A file or a name of the hub; or one by split, `{train: ..., heldout: ...}`."""
    subset: str | None = None
    """Configuration of a data set of the hub."""
    split: str | Mapping[str, str] | None = None
    """Name of the only split that is used, or names by split; None uses all rows. A hash of the
    prompt decides where no names do."""
    split_column: str = SPLIT_COLUMN
    """Column of a file that has the names of splits."""
    heldout_fraction: float = 0.1
    """Share of the rows to hold out, where the hash decides."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) and self.split is not None:
            raise ConfigError("path has a file for each split, so leave `split` out")
        if isinstance(self.split, Mapping) and len(set(self.split.values())) < len(SPLITS):
            raise ConfigError(
                f"split names {self.split['train']!r} for both splits, so that what is trained on "
                "would be held out; name two, or only that one: a hash of the prompt divides it"
            )
        if self.split is None and self.split_column != SPLIT_COLUMN:
            raise ConfigError(
                f"split_column is {self.split_column!r}, but nothing reads it where no names of "
                "splits are given; name those of a file, split: {train: NAME, heldout: NAME}, or "
                "leave split_column out"
            )
        if self.subset is not None and all(map(is_data_file, self.paths)):
            raise ConfigError(
                f"subset is {self.subset!r}, but {self.paths[0]} is a file, and only a data set of "
                "the hub has subsets; leave `subset` out"
            )

    def __hash__(self) -> int:
        return hash((self.paths, self.subset, self.split_column, self.heldout_fraction))

    @property
    def paths(self) -> tuple[str, ...]:
        """Return every file, or the name of the hub."""
        if isinstance(self.path, str):
            return (self.path,)
        return tuple(self.path[split] for split in SPLITS)

    def read(self) -> Iterator[tuple[Split | None, DataRow]]:
        """Yield every row, with its split where that is known by name."""
        if not isinstance(self.path, str):
            for split in SPLITS:
                for row in read_rows(self.path[split], subset=self.subset):
                    yield split, row
        elif is_data_file(self.path):
            yield from self._read_column(self.path)
        elif isinstance(self.split, Mapping):
            for split in SPLITS:
                for row in read_rows(self.path, split=self.split[split], subset=self.subset):
                    yield split, row
        else:
            for row in read_rows(self.path, split=self.split, subset=self.subset):
                yield None, row

    def _read_column(self, path: str) -> Iterator[tuple[Split | None, DataRow]]:
        if self.split is None:
            yield from ((None, row) for row in read_rows(path))
            return
        splits: Mapping[str, Split | None] = (
            {self.split: None}
            if isinstance(self.split, str)
            else {self.split[split]: split for split in SPLITS}
        )
        names = set[str]()
        for row in read_rows(path):
            name = str(read_column(row, self.split_column, "split_column"))
            names.add(name)
            if name in splits:
                yield splits[name], row
        for name in splits:
            if name not in names:
                raise ConfigError(
                    f"split names {name!r}, but the column {self.split_column!r} of {path} has "
                    f"{', '.join(map(repr, sorted(names)[:SHOWN_NAMES]))}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskColumns:
    """Columns that tasks are made of."""

    prompt: str
    """A column of texts or message lists, or a template such as `{context} {question}`."""
    answer: str | None = None
    """A column of references; None for the column `answer`, if there is one."""
    needs_answer: bool = False
    """Whether a row without an answer is refused."""
    has_system: bool = False
    """Whether the environment begins with a system message of its own."""

    def build_task(self, row: DataRow, *, split: Split = "train") -> Task:
        """Return the task of a row; `ConfigError` that names the row and the column."""
        prompt = self._build_prompt(row)
        if self.has_system and not isinstance(prompt, str) and prompt[0].role == "system":
            raise ConfigError(
                f"{row.place} begins with a system message, and `system` is set too; leave out "
                "`system`"
            )
        answer = self._read_answer(row)
        return Task(prompt=prompt, answer=answer, split=split, data={"row": dict(row.values)})

    def _build_prompt(self, row: DataRow) -> str | tuple[Message, ...]:
        if names := _PLACEHOLDER.findall(self.prompt):
            text = fill_template(self.prompt, row.values, f"prompt, for {row.place}")
            absent = [name for name in names if row.values[name] is None]
            if not absent and text.strip():
                return text
            fault = f"has null for {{{absent[0]}}}" if absent else "is empty"
            raise ConfigError(
                f"{row.place}: the prompt ({self.prompt!r:.80}) {fault}; mend or delete the row, "
                "or set `prompt` to a template of other columns"
            )
        value = read_column(row, self.prompt, "prompt")
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value:
            return _read_messages(cast("list[Any]", value), row, self.prompt)
        raise ConfigError(
            f"{row.place}: the prompt (column {self.prompt!r}) {_find_prompt_fault(value)}; it "
            "must be a text or a list of messages: mend or delete the row, or set `prompt` to "
            'another column or to a template such as "{question}"'
        )

    def _read_answer(self, row: DataRow) -> Any:
        column = "answer" if self.answer is None else self.answer
        is_optional = self.answer is None and not self.needs_answer
        value = row.values.get(column) if is_optional else read_column(row, column, "answer")
        if self.needs_answer and (fault := find_reference_fault(value)):
            raise ConfigError(
                f"{row.place}: the answer (column {column!r}) {fault}, and the reward compares "
                "with it; mend or delete the row, or set `answer` to another column"
            )
        return value


def read_column(row: DataRow, column: str, key: str) -> Any:
    """Return a row's value; `ConfigError` naming the row, the key and the columns there are."""
    if column in row.values:
        return row.values[column]
    if column in row.left_out:
        raise ConfigError(
            f"{row.place}: the column {column!r}, which `{key}` names, has no text, number, list "
            "or mapping, but bytes or another type that JSON has not; save it as text"
        )
    near = get_close_matches(column, row.values, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"{row.place} has no column {column!r}, which `{key}` names; {hint}its columns are "
        f"{', '.join(map(repr, row.values)) or 'none'}"
    )


def fill_template(template: str, values: Mapping[str, Any], what: str) -> str:
    """Return a template with every `{name}` replaced by its value, each once.

    Other braces stay as they are. Raises `ConfigError` for a name without a value.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ConfigError(
                f"{what}: there is nothing for the placeholder {match[0]}; there are "
                f"{', '.join(f'{{{name}}}' for name in values)}"
            )
        return str(values[match[1]])

    return _PLACEHOLDER.sub(fill, template)


class RowTasks:
    """Tasks of one split. Rows are kept as JSON, and a task is made when it is asked for."""

    def __init__(self, rows: "PackedRows", columns: TaskColumns, split: Split) -> None:
        self._rows = rows
        self._columns = columns
        self._split: Split = split
        self._places = array("Q")

    def append(self, place: int) -> None:
        """Add the row with this place among the packed rows."""
        self._places.append(place)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Task:
        place = self._places[index]
        row = DataRow(f"row {place + 1}", self._rows.read(place))
        task = self._columns.build_task(row, split=self._split)
        repeat = self._rows.repeats.get(place)
        return task if repeat is None else replace(task, id=f"{task.id}-{repeat}")

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))


class PackedRows:
    """Rows as JSON texts, one behind the other, in a temporary file that ends with them."""

    def __init__(self) -> None:
        self._file = TemporaryFile(prefix="agentrl-rows-", buffering=2**16)  # noqa: SIM115 - `finalize` closes it
        finalize(self, self._file.close)
        self._ends = array("Q", [0])
        self._fingerprints = array("Q")
        self.repeats: Mapping[int, int] = {}
        """By place, how many rows of this problem there are up to this one; without the first."""

    def append(self, row: DataRow, task_id: str) -> int:
        """Keep a row and the fingerprint of its task; return its place."""
        text = row.text or _ENCODER.encode(row.values).encode()
        self._file.write(text)
        self._ends.append(self._ends[-1] + len(text))
        self._fingerprints.append(int(task_id, 16))
        return len(self._ends) - 2

    def finish(self) -> None:
        """Find the rows of equal problems, once all rows are there."""
        self._file.flush()
        self.repeats = count_repeats(self._fingerprints)
        del self._fingerprints

    def read(self, place: int) -> dict[str, Any]:
        """Return the values of a row."""
        start, end = self._ends[place : place + 2]
        # At a place of its own: threads and forked processes share the file.
        return json.loads(os.pread(self._file.fileno(), end - start, start))


def count_repeats(fingerprints: "array[int]") -> dict[int, int]:
    """Return, for every place whose number stood before, how often it has by then."""
    numbers = np.array(fingerprints)
    order = np.argsort(numbers, kind="stable")
    is_repeat = numbers[order][1:] == numbers[order][:-1]
    repeats: dict[int, int] = {}
    for index in np.flatnonzero(is_repeat):
        before, place = int(order[index]), int(order[index + 1])
        repeats[place] = repeats.get(before, 1) + 1
    return repeats


def load_tasks(source: DataSource, columns: TaskColumns) -> Mapping[Split, RowTasks]:
    """Return the tasks of each split, as `build_tasks`, once per process and state of the files."""
    states = tuple(_find_state(path) for path in source.paths)
    with _reading:
        return _load_state(source, columns, states)


@lru_cache(maxsize=KEPT_SOURCES)
def _load_state(
    source: DataSource, columns: TaskColumns, states: tuple[tuple[int, ...], ...]
) -> Mapping[Split, RowTasks]:
    del states  # of the key: another state is another file
    return build_tasks(source, columns)


def _find_state(path: str) -> tuple[int, ...]:
    if not is_data_file(path):
        return ()
    status = find_file(path).stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def build_tasks(source: DataSource, columns: TaskColumns) -> Mapping[Split, RowTasks]:
    """Return the tasks of each split; `ConfigError` for what leaves one of them empty.

    Every row is checked. A task's id is its fingerprint; further rows of one problem count on.
    """
    rows = PackedRows()
    tasks: dict[Split, RowTasks] = {split: RowTasks(rows, columns, split) for split in SPLITS}
    first_text, is_one_prompt = None, True
    for named_split, row in source.read():
        task = columns.build_task(row)
        prompt = task.prompt
        text = prompt if isinstance(prompt, str) else "\n".join(m.text for m in prompt)
        split = named_split or split_of(text, heldout_fraction=source.heldout_fraction)
        tasks[split].append(rows.append(row, task.id))
        first_text = text if first_text is None else first_text
        is_one_prompt = is_one_prompt and text == first_text
    rows.finish()
    for split in SPLITS:
        if not tasks[split]:
            count = sum(map(len, tasks.values()))
            way_out = (
                "they all have one prompt, so that no heldout_fraction divides them: set `prompt` "
                "to a column or a template in which they differ"
                if is_one_prompt
                else f"change heldout_fraction={source.heldout_fraction:g}{_suggest(tasks)}"
            )
            raise ConfigError(
                f"none of the {count} rows of {source.path} is in the split {split!r}, which the "
                f"hash of the prompt decides; {way_out}, or name the splits: split: {{train: NAME, "
                "heldout: NAME}"
            )
    return tasks


def _suggest(tasks: Mapping[Split, RowTasks]) -> str:
    """Return a `heldout_fraction` that leaves no split empty; empty where none is found."""
    rows = islice((task for split in SPLITS for task in tasks[split]), SUGGEST_ROWS)
    texts = ["\n".join(message.text for message in task.messages) for task in rows]
    for fraction in _FRACTIONS:
        count = sum(split_of(text, heldout_fraction=fraction) == "heldout" for text in texts)
        if 0 < count < len(texts):
            return f" to {fraction:g}, which holds out {count} of {len(texts)}"
    return ""


def order_tasks(tasks: Mapping[Split, RowTasks]) -> Callable[[Split, int], Iterator[Task]]:
    """Return the task source of these tasks, in an order that the seed decides."""

    def ordered(split: Split, seed: int) -> Iterator[Task]:
        places = array("Q", range(len(tasks[split])))
        Random(derive("dataset", split, seed)).shuffle(places)
        return (tasks[split][place] for place in places)

    return ordered


def _find_prompt_fault(value: object) -> str:
    if value is None:
        return "is null"
    if isinstance(value, bool):
        return f"is {str(value).lower()}"
    if isinstance(value, int | float):
        return f"is the number {value!r:.40}"
    return "is empty" if isinstance(value, str) or not value else f"is {value!r:.60}"


def _read_messages(messages: list[Any], row: DataRow, column: str) -> tuple[Message, ...]:
    """Return a chat column's messages, in OpenAI's form or ShareGPT's (`from`, `value`)."""
    read = tuple(
        _read_message(message, f"{row.place}: message {number} of {column!r}")
        for number, message in enumerate(messages, start=1)
    )
    for number, message in enumerate(read[1:], start=2):
        if message.role == "system":
            raise ConfigError(
                f"{row.place}: message {number} of {column!r} is the system's; there may be one, "
                "at the beginning"
            )
    if read[-1].role != "user":
        raise ConfigError(
            f"{row.place}: the messages of {column!r} end with the {read[-1].role}'s, so nothing "
            "is asked; save the prompt, up to the user's last message, in a column of its own"
        )
    if not read[-1].text.strip():
        raise ConfigError(
            f"{row.place}: the last message of {column!r} is empty; mend or delete the row"
        )
    return read


def _read_message(given: Any, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r:.60}; write {{role: user, content: TEXT}}")
    message = cast("Mapping[str, Any]", given)
    role = ROLES.get(str(message.get("role", message.get("from"))))
    content = message.get("content", message.get("value"))
    if role is None:
        raise ConfigError(
            f"{where} has the role {message.get('role', message.get('from'))!r}; it must be one of "
            f"{', '.join(ROLES)}"
        )
    calls = _read_calls(message.get("tool_calls") or (), where)
    if isinstance(content, list):
        content = _join_parts(cast("list[Any]", content), where)
    if not isinstance(content, str) and not (content is None and calls):
        raise ConfigError(f"{where} has the content {content!r:.60}; it must be text")
    tool_call_id, name = message.get("tool_call_id"), message.get("name")
    for key, value in (("tool_call_id", tool_call_id), ("name", name)):
        if not isinstance(value, str | None):
            raise ConfigError(f"{where} has the {key} {value!r:.60}; it must be text")
    return Message(role, content or "", tool_calls=calls, tool_call_id=tool_call_id, name=name)


def _read_calls(given: Any, where: str) -> tuple[ToolCall, ...]:
    try:
        return tuple(
            ToolCall(
                str(call.get("id") or f"call_{number}"),
                call.get("function", call)["name"],
                _read_arguments(call.get("function", call)["arguments"]),
            )
            for number, call in enumerate(given)
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where} has tool_calls that cannot be read ({type(error).__name__}: {error}); write "
            "[{function: {name: NAME, arguments: {...}}}]"
        ) from error


def _read_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of a call, which OpenAI's form has as a JSON text."""
    return dict(read_json(given) if isinstance(given, str) else given)


def _join_parts(parts: list[Any], where: str) -> str:
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise ConfigError(
            f"{where} has a part that is no text; images in data sets are not read: write an "
            "environment that shows them (docs/vision.md)"
        )
    return "".join(cast("list[str]", texts))
