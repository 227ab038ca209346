"""Rows of a data set become tasks, or an error that names the file, the row and the way out.

Mutants seen caught: a hash of the row in place of the prompt, so that one prompt is in both splits;
U+2028 taken for the end of a line; a second row of one problem with the id of the first; a
placeholder filled again in what was filled in.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall
from agentrl.task import SPLITS
from agentrl_envs.dataset import DatasetEnv
from agentrl_envs.dataset.row_tasks import DataSource, TaskColumns, build_tasks, fill_template
from agentrl_envs.dataset.rows import DataRow, find_missing_reader, read_rows


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def sums(count: int, **more: Any) -> list[Mapping[str, Any]]:
    return [{"prompt": f"{n} + {n}?", "answer": str(2 * n), **more} for n in range(count)]


def test_the_formats_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": 'a "b", c\nd', "answer": "1"}, {"prompt": "e\u2028f", "answer": "2"}]
    raw = json.dumps(rows, ensure_ascii=False)
    files = {
        "a.jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n",
        "b.json": raw,
        "c.json": '{"version": 1, "data": ' + raw + "}",
        "d.csv": 'prompt,answer\n"a ""b"", c\nd",1\ne\u2028f,2\n',
    }
    for name, text in files.items():
        assert [row.values for row in read_rows(write(tmp_path, name, text))] == rows, name


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", "", "a.jsonl has no rows; write one task per row"),
        (
            "a.jsonl",
            '{"prompt": "x"}\n{"prompt": ',
            r"line 2 of .*a.jsonl cannot be read: broken J",
        ),
        (
            "a.jsonl",
            "[1]\n",
            r"line 1 of .* is \[1\], which is no JSON object; write one object per",
        ),
        ("a.json", '{"a": [], "b": []}', "neither a list of objects nor an object with one such"),
        (
            "a.csv",
            "a,b\n1,2\n3\n",
            r"row 2 of .* \(line 3\) has not as many values .* are a, b; put",
        ),
        ("a.csv", 'a,b\n"1"2,3\n', "cannot be read as CSV after line 1"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_rows(write(tmp_path, name, text))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no data file .*no.jsonl; name a file of .par"):
        read_rows(str(tmp_path / "no.jsonl"))
    (tmp_path / "b.csv").write_bytes(b"a\n\xff\n")
    with pytest.raises(ConfigError, match=r"b.csv is not UTF-8 text: .*; save it as UTF-8"):
        read_rows(str(tmp_path / "b.csv"))


def test_a_reader_that_is_missing_is_named() -> None:
    assert find_missing_reader("tasks.jsonl") == ""
    assert "agentrl-gym[data]" in find_missing_reader("openai/gsm8k")
    with pytest.raises(ConfigError, match="openai/gsm8k is read with datasets, which is not inst"):
        read_rows("openai/gsm8k")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines(sums(1)))
    assert len(read_rows(file)) == 1
    write(tmp_path, "a.jsonl", lines(sums(2)))
    assert len(read_rows(file)) == 2


@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        (
            {"question": "a"},
            {},
            r"row has no column 'prompt', which `prompt` names; its columns are",
        ),
        ({"promt": "a"}, {}, "did you mean 'promt'"),
        (
            {"prompt": " ", "answer": "1"},
            {},
            r"the prompt \(column 'prompt'\) is empty; it must be",
        ),
        (
            {"prompt": 3, "answer": "1"},
            {},
            r"the prompt \(column 'prompt'\) is 3; it must be a text",
        ),
        (
            {"prompt": "a", "answer": ""},
            {},
            r"row: the answer \(column 'answer'\) is empty, and the",
        ),
        ({"prompt": "a"}, {}, "row has no column 'answer', which `answer` names"),
        ({"prompt": "a"}, {"answer": "gold"}, "row has no column 'gold', which `answer` names"),
        ({"prompt": [{"role": "judge"}]}, {}, "message 1 of 'prompt' has the role 'judge'"),
        ({"prompt": ["hello"]}, {}, "message 1 of 'prompt' is 'hello'; write {role: user"),
        (
            {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            {},
            "end with the assistant's, so nothing is left to say",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            {},
            "has a part that is no text; images in data sets are not read",
        ),
        (
            {"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]},
            {"has_system": True},
            "row begins with a system message, and `system` is set too",
        ),
        ({"a": "x"}, {"prompt": "{a} {b}"}, r"prompt, for row: there is nothing .* \{b\}; there"),
    ],
)
def test_a_row_that_is_no_task_names_the_column(
    row: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {"prompt": "prompt", "needs_answer": True, **settings}
    columns = TaskColumns(**arguments)
    with pytest.raises(ConfigError, match=words):
        columns.build_task(DataRow("row", row))


def test_messages_of_both_forms_are_read() -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": {"at": 1}}}
    openai = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "T", "tool_call_id": "c1", "name": "look"},
    ]
    sharegpt = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]
    columns = TaskColumns(prompt="chat")
    task = columns.build_task(DataRow("row", {"chat": openai}))
    assert task.messages == (
        Message("system", "S"),
        Message("user", "U"),
        Message("assistant", "", tool_calls=(ToolCall("c1", "look", {"at": 1}),)),
        Message("tool", "T", tool_call_id="c1", name="look"),
    )
    more = [*sharegpt, {"from": "human", "value": "V"}]
    task = columns.build_task(DataRow("row", {"chat": more}))
    assert [(m.role, m.text) for m in task.messages] == [
        ("user", "U"),
        ("assistant", "A"),
        ("user", "V"),
    ]


def test_a_template_is_filled_once() -> None:
    assert fill_template("{a}-{b} {x y} {}", {"a": "{b}", "b": 2}, "it") == "{b}-2 {x y} {}"


def test_names_of_splits_decide(tmp_path: Path) -> None:
    rows = [{**row, "part": "abc"[n % 3]} for n, row in enumerate(sums(9))]
    file = write(tmp_path, "a.jsonl", lines(rows))
    columns = TaskColumns(prompt="prompt")
    named = DataSource(path=file, split={"train": "a", "heldout": "c"}, split_column="part")
    tasks = build_tasks(named, columns)
    assert [task.prompt for task in tasks["train"]] == ["0 + 0?", "3 + 3?", "6 + 6?"]
    assert [task.prompt for task in tasks["heldout"]] == ["2 + 2?", "5 + 5?", "8 + 8?"]
    half = DataSource(path=file, split="a", split_column="part", heldout_fraction=0.5)
    assert sum(map(len, build_tasks(half, columns).values())) == 3
    with pytest.raises(
        ConfigError, match=r"split names 'd', but the column 'part' of .* has 'a', 'b"
    ):
        build_tasks(
            DataSource(path=file, split={"train": "a", "heldout": "d"}, split_column="part"),
            columns,
        )
    other = write(tmp_path, "b.jsonl", lines(sums(2)))
    apart = build_tasks(DataSource(path={"train": file, "heldout": other}), columns)
    assert [len(apart[split]) for split in SPLITS] == [9, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": {"train": "a"}}, r"path is .*; name both splits, as \{train: ..., heldout"),
        ({"split": {"train": "a", "test": "b"}}, "split is .*; name both splits"),
        ({"path": {"train": "a", "heldout": "b"}, "split": "c"}, "so leave `split` out"),
        ({"heldout_fraction": 1.0}, "heldout_fraction must be between 0 and 1, got 1.0"),
    ],
)
def test_settings_that_say_no_split(settings: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"path": "a.jsonl", **settings}
    with pytest.raises(ConfigError, match=words):
        DataSource(**arguments)


def test_a_split_that_stays_empty_says_how_to_fill_it(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines(sums(1)))
    with pytest.raises(ConfigError, match=r"none of the 1 rows .* change heldout_fraction=0.1, or"):
        DatasetEnv(path=file)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 1)), min_size=1, max_size=20))
def test_a_prompt_is_in_one_split_and_ids_are_unique(rows: list[tuple[str, int]]) -> None:
    class Source(DataSource):
        def read(self) -> Any:
            for text, more in rows:
                yield None, DataRow("row", {"prompt": text, "answer": "1", "more": more})

    try:
        tasks = build_tasks(Source(path="x", heldout_fraction=0.5), TaskColumns(prompt="prompt"))
    except ConfigError:
        return
    prompts = [{task.prompt for task in tasks[split]} for split in SPLITS]
    assert not prompts[0] & prompts[1]
    every = [task for split in SPLITS for task in tasks[split]]
    assert len({task.id for task in every}) == len(every) == len(rows)


def test_the_seed_decides_the_order_alone(tmp_path: Path) -> None:
    env = DatasetEnv(path=write(tmp_path, "a.jsonl", lines(sums(40))), heldout_fraction=0.5)
    orders = [[task.id for task in env.tasks("train", seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    (task,) = islice(env.tasks("heldout"), 1)
    assert task.data["row"]["prompt"] == task.prompt
