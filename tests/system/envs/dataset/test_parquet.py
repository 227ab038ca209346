"""Rows of parquet, read where pyarrow is: five lines of a config.

Mutants seen caught: a picture that is kept among the values, which no JSON holds; rows
of the first batch alone.
"""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.authoring.gold import play_gold
from agentrl.errors import ConfigError
from agentrl.registry import make
from agentrl_envs.dataset import DatasetEnv
from agentrl_envs.dataset.row_tasks import TaskColumns
from agentrl_envs.dataset.rows import BATCH_ROWS, read_rows
from tests.support.foreign_packages import BENCH

pytestmark = pytest.mark.pyarrow


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return what writes columns to a file in the working folder."""
    monkeypatch.syspath_prepend(BENCH / "pyarrow")
    monkeypatch.chdir(tmp_path)
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    def write(columns: Any, names: list[str] | None = None, **settings: Any) -> str:
        table = pyarrow.table(columns, names=names)
        parquet.write_table(table, "tasks.parquet", **settings)
        return "tasks.parquet"

    return write


async def test_a_parquet_file_is_an_environment(write: Write) -> None:
    chats = [[{"role": "user", "content": f"{n} + {n}?"}] for n in range(40)]
    answers = [2 * n for n in range(40)]
    columns = {"chat": chats, "sum": answers, "day": [date(2026, 1, 2)] * 40, "png": [b"x"] * 40}
    row = list(read_rows(write(columns)))[1]
    assert row.values == {"chat": chats[1], "sum": 2, "day": "2026-01-02"}
    assert row.left_out == ("png",)
    section = yaml.safe_load(
        """
        id: dataset
        kwargs: {path: tasks.parquet, prompt: chat, answer: sum, heldout_fraction: 0.3}
        """
    )
    env = make(section["id"], **section["kwargs"])
    task = next(iter(env.tasks("heldout")))
    assert (await play_gold(env, task)).reward == 1.0
    await env.close()


def test_columns_of_every_form_are_read(write: Write) -> None:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    arrow: Any = pa
    count = 3 * BATCH_ROWS
    texts = [f"text {n % 7}" for n in range(count)]
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    chat = [
        {"role": "user", "content": "a", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "b", "tool_calls": None},
    ]
    columns = {
        "large": arrow.array(texts, arrow.large_string()),
        "coded": arrow.array(texts).dictionary_encode(),
        "score": arrow.array([float("nan")] * count),
        "pairs": arrow.array([[("k", 1)]] * count, arrow.map_(arrow.string(), arrow.int64())),
        "chat": arrow.array([chat] * count),
        "null": arrow.nulls(count),
    }
    path = write(columns, row_group_size=1000)
    rows = list(read_rows(path))
    assert [row.values["large"] for row in rows] == texts
    assert [row.values["coded"] for row in rows] == texts
    assert rows[-1].place == f"row {count} of tasks.parquet"
    assert (rows[-1].values["score"], rows[-1].values["null"]) == (None, None)
    assert rows[-1].values["pairs"] == [["k", 1]]
    task = TaskColumns(prompt="chat").build_task(rows[0])
    assert [message.role for message in task.messages] == ["user", "assistant", "user"]
    assert task.messages[1].tool_calls[0].arguments == {"at": 1}


def test_what_cannot_be_read_says_where(write: Write) -> None:
    path = write([["a"], ["b"]], names=["prompt", "prompt"])
    with pytest.raises(ConfigError, match=r"tasks.parquet has 2 columns 'prompt'; rename all but"):
        list(read_rows(path))
    path = write({"prompt": [b"a"], "answer": ["1"]})
    with pytest.raises(ConfigError, match=r"row 1 of .*: the column 'prompt', .* but bytes or"):
        DatasetEnv(path=path)
    path = write({"prompt": ["a", "b", None, "c"], "answer": ["1"] * 4})
    with pytest.raises(ConfigError, match=r"row 3 of .*: the prompt \(column 'prompt'\) is null"):
        DatasetEnv(path=path)
    Path(path).write_bytes(Path(path).read_bytes()[:-30])
    with pytest.raises(ConfigError, match=r"tasks.parquet cannot be read as parquet: .*; write it"):
        list(read_rows(path))
