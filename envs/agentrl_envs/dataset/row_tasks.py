"""Tasks made of the rows of a data set: prompt, answer, split."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from random import Random
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.message import Message, Role, ToolCall
from agentrl.runtime.seeds import derive
from agentrl.task import SPLITS, Split, Task, split_of
from agentrl_envs.dataset.final_answers import find_reference_fault
from agentrl_envs.dataset.rows import DataRow, read_rows
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
    split_column: str = "split"
    """Column of a file that has the names of splits."""
    heldout_fraction: float = 0.1
    """Share of the rows to hold out, where the hash decides."""

    def __post_init__(self) -> None:
        for key in ("path", "split"):
            value: Any = getattr(self, key)
            if isinstance(value, Mapping):
                names = cast("Mapping[object, object]", value)
                are_texts = all(isinstance(name, str) for name in names.values())
                if sorted(map(str, names)) != sorted(SPLITS) or not are_texts:
                    raise ConfigError(
                        f"{key} is {dict(names)}; name both splits, as {{train: ..., heldout: ...}}"
                    )
        if not isinstance(self.path, str) and self.split is not None:
            raise ConfigError("path has a file for each split, so leave `split` out")
        if not 0 < self.heldout_fraction < 1:
            raise ConfigError(
                f"heldout_fraction must be between 0 and 1, got {self.heldout_fraction}; 0.1 is "
                "the default"
            )

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
        rows = read_rows(path)
        if self.split is None:
            yield from ((None, row) for row in rows)
            return
        names = Counter(str(read_column(row, self.split_column, "split_column")) for row in rows)
        splits: Mapping[str, Split | None] = (
            {self.split: None}
            if isinstance(self.split, str)
            else {self.split[split]: split for split in SPLITS}
        )
        for name in splits:
            if name not in names:
                raise ConfigError(
                    f"split names {name!r}, but the column {self.split_column!r} of {path} has "
                    f"{', '.join(map(repr, sorted(names)))}"
                )
        for row in rows:
            name = str(row.values[self.split_column])
            if name in splits:
                yield splits[name], row


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

    def build_task(self, row: DataRow) -> Task:
        """Return the task of a row; `ConfigError` that names the row and the column."""
        prompt = self._build_prompt(row)
        if self.has_system and not isinstance(prompt, str) and prompt[0].role == "system":
            raise ConfigError(
                f"{row.place} begins with a system message, and `system` is set too; leave out "
                "`system`"
            )
        answer = self._read_answer(row)
        return Task(prompt=prompt, answer=answer, data={"row": dict(row.values)})

    def _build_prompt(self, row: DataRow) -> str | tuple[Message, ...]:
        if _PLACEHOLDER.search(self.prompt):
            return fill_template(self.prompt, row.values, f"prompt, for {row.place}")
        value = read_column(row, self.prompt, "prompt")
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value:
            return _read_messages(cast("list[Any]", value), row, self.prompt)
        what = "is empty" if not value or isinstance(value, str) else f"is {value!r:.60}"
        raise ConfigError(
            f"{row.place}: the prompt (column {self.prompt!r}) {what}; it must be a text or a list "
            "of messages: fill or delete the row, or set `prompt` to another column"
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


def build_tasks(source: DataSource, columns: TaskColumns) -> Mapping[Split, Sequence[Task]]:
    """Return the tasks of each split; `ConfigError` for what leaves one of them empty.

    A task's id is its fingerprint; further rows of one problem count on.
    """
    tasks: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    counts = Counter[str]()
    for named_split, row in source.read():
        task = columns.build_task(row)
        text = "\n".join(message.text for message in task.messages)
        split = named_split or split_of(text, heldout_fraction=source.heldout_fraction)
        counts[task.id] += 1
        id = task.id if counts[task.id] == 1 else f"{task.id}-{counts[task.id]}"
        tasks[split].append(replace(task, split=split, id=id))
    for split in SPLITS:
        if not tasks[split]:
            raise ConfigError(
                f"none of the {sum(counts.values())} rows of {source.path} is in the split "
                f"{split!r}, which the hash of the prompt decides; change heldout_fraction="
                f"{source.heldout_fraction:g}, or name the splits: split: {{train: NAME, heldout: "
                "NAME}"
            )
    return tasks


def order_tasks(tasks: Mapping[Split, Sequence[Task]]) -> Callable[[Split, int], Iterator[Task]]:
    """Return the task source of these tasks, in an order that the seed decides."""

    def ordered(split: Split, seed: int) -> Iterator[Task]:
        places = list(range(len(tasks[split])))
        Random(derive("dataset", split, seed)).shuffle(places)
        return (tasks[split][place] for place in places)

    return ordered


def _read_messages(messages: list[Any], row: DataRow, column: str) -> tuple[Message, ...]:
    """Return a chat column's messages, in OpenAI's form or ShareGPT's (`from`, `value`)."""
    read = tuple(
        _read_message(message, f"{row.place}: message {number} of {column!r}")
        for number, message in enumerate(messages, start=1)
    )
    if read[-1].role == "assistant":
        raise ConfigError(
            f"{row.place}: the messages of {column!r} end with the assistant's, so nothing is left "
            "to say; save the prompt without it in a column of its own"
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
    return Message(
        role,
        content or "",
        tool_calls=calls,
        tool_call_id=message.get("tool_call_id"),
        name=message.get("name"),
    )


def _read_calls(given: Any, where: str) -> tuple[ToolCall, ...]:
    try:
        return tuple(
            ToolCall(
                str(call.get("id") or f"call_{number}"),
                call.get("function", call)["name"],
                dict(call.get("function", call)["arguments"]),
            )
            for number, call in enumerate(given)
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where} has tool_calls that cannot be read ({type(error).__name__}: {error}); write "
            "[{function: {name: NAME, arguments: {...}}}]"
        ) from error


def _join_parts(parts: list[Any], where: str) -> str:
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise ConfigError(
            f"{where} has a part that is no text; images in data sets are not read: write an "
            "environment that shows them (docs/vision.md)"
        )
    return "".join(cast("list[str]", texts))
