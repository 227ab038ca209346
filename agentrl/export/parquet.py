"""A Hugging Face dataset: a parquet file per split and the card that names them."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.export.row import Row
from agentrl.runtime.extras import explain_missing

BATCH = 256
CARD = "README.md"


class ParquetFiles(AbstractContextManager["ParquetFiles"]):
    """Writes rows to `data/SPLIT-00000-of-00001.parquet`. Use it in `with`."""

    def __init__(self, folder: Path, *, tokens: bool) -> None:
        """Raises `ConfigError` where pyarrow is not installed."""
        try:
            import pyarrow  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError(
                f"{explain_missing('--to hf', 'pyarrow')}, or use --to jsonl"
            ) from error
        self._arrow: Any = pyarrow
        self._folder = folder
        self._schema = _schema(self._arrow, tokens=tokens)
        self._writers: dict[str, Any] = {}
        self._rows: dict[str, list[Row]] = {}
        self._stack = ExitStack()

    def add(self, row: Row) -> None:
        """Write a row of JSON lines, sooner or later."""
        split = row["task"]["split"]
        waiting = self._rows.setdefault(split, [])
        waiting.append(flat(row))
        if len(waiting) >= BATCH:
            self._flush(split)

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            for split in self._rows:
                self._flush(split)
            (self._folder / CARD).write_text(_card(sorted(self._writers)))
        self._stack.close()

    def _flush(self, split: str) -> None:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]

        if split not in self._writers:
            file = self._folder / "data" / f"{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = parquet.ParquetWriter(file, self._schema)
            self._writers[split] = self._stack.enter_context(writer)
        rows, self._rows[split] = self._rows[split], []
        if rows:
            self._writers[split].write_table(self._arrow.Table.from_pylist(rows, self._schema))


def flat(row: Mapping[str, Any]) -> Row:
    """Return a row of JSON lines with one type per column: what varies is JSON text."""
    task = row["task"]
    columns = {k: v for k, v in row.items() if k not in ("task", "tools", "messages", "components")}
    return {
        **columns,
        "task_id": task["id"],
        "split": task["split"],
        "tags": task["tags"],
        "answer": json.dumps(task["answer"], ensure_ascii=False),
        "components": json.dumps(row["components"]),
        "tools": json.dumps(row["tools"], ensure_ascii=False),
        "messages": [_flat_message(message) for message in row["messages"]],
    }


def _flat_message(message: Mapping[str, Any]) -> Row:
    content = message["content"]
    parts = None if isinstance(content, str) else content
    text = content if parts is None else "".join(part.get("text", "") for part in parts)
    return {
        "role": message["role"],
        "content": text,
        "parts": parts,
        "tool_calls": [
            {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
            for call in message.get("tool_calls", ())
        ],
        "tool_call_id": message.get("tool_call_id"),
        "anew": message.get("anew", False),
        "after": message.get("after"),
        "name": message.get("name"),
    }


def _schema(pa: Any, *, tokens: bool) -> Any:
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    part = pa.struct({"type": text, "text": text, "path": text, "media_type": text})
    call = pa.struct({"id": text, "name": text, "arguments": text})
    message = pa.struct(
        {
            "role": text,
            "content": text,
            "parts": pa.list_(part),
            "tool_calls": pa.list_(call),
            "tool_call_id": text,
            "name": text,
            "anew": pa.bool_(),
            "after": whole,
        }
    )
    columns = dict.fromkeys(("run", "group_state", "outcome", "error"), text)
    columns |= dict.fromkeys(("task_id", "split", "answer", "components", "tools"), text)
    columns |= dict.fromkeys(("format", "group", "step", "trajectory", "sample"), whole)
    columns |= {"forked_from": whole, "tool_calls": whole, "reward": real, "seconds": real}
    columns |= {"turn_rewards": pa.list_(real), "tags": pa.list_(text)}
    columns["messages"] = pa.list_(message)
    if tokens:
        lists = {"ids": whole, "mask": pa.bool_(), "sources": text, "turns": whole}
        lists |= {"logprobs": real, "versions": whole, "jumps": pa.list_(whole)}
        columns["tokens"] = pa.struct({name: pa.list_(kind) for name, kind in lists.items()})
    return pa.schema(columns)


def _card(splits: list[str]) -> str:
    files = "".join(f"  - split: {s}\n    path: data/{s}-*.parquet\n" for s in splits)
    return (
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        f"{files}---\n\nTrajectories of an agentrl run, a row each.\n"
    )
