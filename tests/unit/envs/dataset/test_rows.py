"""Rows of a data set become tasks, or an error that names the file, the row and the way out.

Mutants seen caught: a hash of the row in place of the prompt, so that one prompt is in both splits;
U+2028 taken for the end of a line; a third row of one problem with the id of the second; a
placeholder filled again in what was filled in; UTF-16 not looked for; columns of one name read;
the limit on values of CSV left wide; a file that changed not read again; one prompt for all rows
not told; a list that ends with a tool's message, or has a late system message; NaN kept; rows kept
as objects; null written into a template as None, or an empty one taken.
"""

import csv
import gc
import json
import re
import tracemalloc
from array import array
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall
from agentrl.runtime.extras import is_installed
from agentrl.task import SPLITS, Task, split_of
from agentrl_envs.dataset import DatasetEnv
from agentrl_envs.dataset.row_tasks import (
    DataSource,
    TaskColumns,
    build_tasks,
    count_repeats,
    fill_template,
    load_tasks,
)
from agentrl_envs.dataset.rows import DataRow, convert_value, find_missing_reader, read_rows


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
        read = [row.values for row in read_rows(write(tmp_path, name, "\ufeff" + text))]
        assert read == rows, name


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", "", "a.jsonl has no rows; write one task per row"),
        ("a.jsonl", "\ufeff\n", "a.jsonl has no rows; write one task per row"),
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
        ("a.csv", 'a,b\n"1"2,3\n', "cannot be read as CSV at line 2"),
        ("a.csv", "a,b,a\n1,2,3\n", "the header of .*a.csv has 2 columns 'a'; rename all but one"),
        ("a.csv", "a,b\n", "a.csv has no rows"),
        ("a.jsonl", '{"prompt": NaN}', r"line 1 of .* is not finite \(NaN\).*; write a finite"),
        ("a.jsonl", '\n{"prompt": "\\ud800"}', r"line 2 of .* half of a surrogate pair; write"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        list(read_rows(write(tmp_path, name, text)))


def test_a_key_that_a_row_has_twice_is_refused(tmp_path: Path) -> None:
    for name, text in [
        ("a.jsonl", '{"prompt": "a", "answer": 1, "answer": 2}\n'),
        ("a.jsonl", '{"prompt": "a", "meta": [{"b": 1, "b": 1}]}\n'),
        ("a.json", '[{"prompt": "a", "answer": 1, "answer": 2}]'),
    ]:
        with pytest.raises(ConfigError, match=f"{name} cannot be read: an object .* has the key"):
            list(read_rows(write(tmp_path, name, text)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("b.csv", b"a\n\xff\n", r"b.csv is not UTF-8 text: .*; save it as UTF-8"),
        ("b.jsonl", b'{"a": "\xff"}', r"line 1 of .*b.jsonl cannot be read: .*not UTF-8 at byte 7"),
        ("b.csv", "a\nb\n".encode("utf-16"), "b.csv is UTF-16 text; save it as UTF-8"),
        ("b.jsonl", "{}".encode("utf-32"), "b.jsonl is UTF-32 text; save it as UTF-8"),
    ],
)
def test_what_is_no_utf8_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        list(read_rows(str(tmp_path / name)))


@pytest.mark.parametrize("name", ["b.jsonl.gz", "b.tsv", "b.txt", "rows"])
def test_a_file_of_another_format_names_those_that_are_read(tmp_path: Path, name: str) -> None:
    """A mutant that takes it for a name of the hub is caught."""
    (tmp_path / name).write_text("question\n")
    words = r"is no data file that can be read: \.parquet, .*\.csv; unpack it, or save its rows"
    with pytest.raises(ConfigError, match=words):
        list(read_rows(str(tmp_path / name)))
    assert re.search(words, find_missing_reader(str(tmp_path / name)))


@pytest.mark.parametrize("name", ["no.jsonl", "no.parquet"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    """No package is asked for to read it."""
    file = str(tmp_path / name)
    assert find_missing_reader(file) == ""
    with pytest.raises(ConfigError, match=rf"there is no data file .*{name}; name a file of .par"):
        list(read_rows(file))


def test_a_long_value_is_read_whole(tmp_path: Path) -> None:
    text = "x" * 200_000
    file = write(tmp_path, "a.csv", f"a,b\n{text},1\n\n2,3\n")
    before = csv.field_size_limit()
    assert [row.values["a"] for row in read_rows(file)] == [text, "2"]
    assert csv.field_size_limit() == before


def test_a_reader_that_is_missing_is_named(tmp_path: Path) -> None:
    if not is_installed("pyarrow"):
        words = "a.parquet needs pyarrow, .* or save it as JSON lines"
        assert re.search(words, find_missing_reader(write(tmp_path, "a.parquet", "PAR1")))
    assert find_missing_reader("tasks.jsonl") == ""
    assert "agentrl-gym[data]" in find_missing_reader("openai/gsm8k")
    with pytest.raises(ConfigError, match="reading openai/gsm8k needs datasets, which is not inst"):
        list(read_rows("openai/gsm8k"))


@given(st.text(min_size=1), st.none() | st.integers() | st.text() | st.lists(st.text()))
def test_a_text_and_its_message_are_one_problem(prompt: str, answer: Any) -> None:
    text = Task(prompt=prompt, answer=answer)
    assert text.fingerprint == Task(prompt=text.messages, answer=answer).fingerprint


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    source = DataSource(path=write(tmp_path, "a.jsonl", lines(sums(20))), heldout_fraction=0.5)
    columns = TaskColumns(prompt="prompt")
    tasks = load_tasks(source, columns)
    assert load_tasks(source, columns) is tasks
    write(tmp_path, "a.jsonl", lines(sums(30)))
    assert sum(map(len, load_tasks(source, columns).values())) == 30
    assert load_tasks(source, TaskColumns(prompt="answer"))["train"][0].messages[0].text.isdecimal()


def test_rows_take_some_bytes_of_memory_each(tmp_path: Path) -> None:
    rows = sums(3_000, more="x" * 100)
    file = write(tmp_path, "a.jsonl", lines(rows))
    columns = TaskColumns(prompt="prompt")
    build_tasks(DataSource(path=file), columns)  # what is made once is not counted
    gc.collect()
    tracemalloc.start()
    tasks = build_tasks(DataSource(path=file), columns)
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, tasks.values())) == len(rows)
    assert kept_bytes < 2**17 + 32 * len(rows)


@given(st.lists(st.integers(0, 6), max_size=30))
def test_repeats_are_counted(numbers: list[int]) -> None:
    repeats = count_repeats(array("Q", numbers))
    counts = [numbers[: place + 1].count(number) for place, number in enumerate(numbers)]
    assert repeats == {place: count for place, count in enumerate(counts) if count > 1}


@pytest.mark.parametrize(
    ("value", "converted"),
    [
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (float("nan"), None),
        (float("-inf"), None),
        ([("a", 1)], [["a", 1]]),
        ({1: None}, {"1": None}),
    ],
)
def test_values_of_tables_become_json(value: object, converted: object) -> None:
    assert convert_value(value) == converted


@pytest.mark.parametrize("value", [b"x", [b"x"], {"image": {"bytes": b"x"}}, object()])
def test_what_json_has_no_type_for_is_told(value: object) -> None:
    with pytest.raises(TypeError, match="JSON has no type for"):
        convert_value(value)


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
            r"\(column 'prompt'\) is the number 3; it must be a text .* or to a template such as",
        ),
        ({"prompt": 0, "answer": "1"}, {}, r"\(column 'prompt'\) is the number 0; it must be"),
        ({"prompt": False, "answer": "1"}, {}, r"\(column 'prompt'\) is false; it must be"),
        ({"prompt": None, "answer": "1"}, {}, r"\(column 'prompt'\) is null; it must be"),
        ({"prompt": [], "answer": "1"}, {}, r"\(column 'prompt'\) is empty; it must be"),
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
            "row: the messages of 'prompt' end with the assistant's, so nothing is asked; save",
        ),
        (
            {"prompt": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]},
            {},
            "row: the messages of 'prompt' end with the tool's, so nothing is asked",
        ),
        (
            {"prompt": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
            {},
            "row: message 2 of 'prompt' is the system's; there may be one, at the beginning",
        ),
        (
            {"prompt": [{"role": "user", "content": " "}]},
            {},
            "row: the last message of 'prompt' is empty; mend or delete the row",
        ),
        (
            {"prompt": [{"role": "user", "content": "a", "name": 3}]},
            {},
            "row: message 1 of 'prompt' has the name 3; it must be text",
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
    as_text = {"function": {"name": "look", "arguments": '{"at": 2}'}}
    openai = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, as_text]},
        {"role": "tool", "content": "T", "tool_call_id": "c1", "name": "look"},
        {"role": "user", "content": "V"},
    ]
    sharegpt = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]
    columns = TaskColumns(prompt="chat")
    task = columns.build_task(DataRow("row", {"chat": openai}))
    assert task.messages == (
        Message("system", "S"),
        Message("user", "U"),
        Message(
            "assistant",
            "",
            tool_calls=(ToolCall("c1", "look", {"at": 1}), ToolCall("call_1", "look", {"at": 2})),
        ),
        Message("tool", "T", tool_call_id="c1", name="look"),
        Message("user", "V"),
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


@pytest.mark.parametrize(("value", "fault"), [(None, "has null for {a}"), (" ", "is empty")])
def test_a_template_without_a_text_is_refused(value: str | None, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"row 3: the prompt .* {re.escape(fault)}; mend or del"):
        TaskColumns(prompt="{a} {b}").build_task(DataRow("row 3", {"a": value, "b": ""}))


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
    ("settings", "fault"),
    [
        ({"path": "x", "split": {"train": "a", "heldout": "a"}}, "split names 'a' for both splits"),
        (
            {"path": "a.jsonl", "split_column": "part"},
            "split_column is 'part', but nothing reads it",
        ),
        (
            {"path": {"train": "a.jsonl", "heldout": "b.jsonl"}, "split_column": "part"},
            "split_column is 'part', but nothing reads it",
        ),
    ],
)
def test_names_of_splits_that_do_not_part_the_rows_are_refused(
    settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        DataSource(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": {"train": "a", "heldout": "b"}, "split": "c"}, "so leave `split` out"),
        ({"path": "a.csv", "subset": "main"}, "subset is 'main', but a.csv is a file, and only"),
    ],
)
def test_settings_that_say_no_split(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DataSource(**settings)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (sums(2), r"none of the 2 rows .* change heldout_fraction=1e-09 to .*, or name the splits"),
        (sums(1), "none of the 1 rows .* all have one prompt, so that no heldout_fraction div"),
        (
            [{"prompt": "Go on.", "answer": str(n)} for n in range(99)],
            "none of the 99 rows .* one prompt, .*: set `prompt` to a column or a template in",
        ),
    ],
)
def test_a_split_that_stays_empty_says_how_to_fill_it(
    tmp_path: Path, rows: Sequence[Mapping[str, Any]], words: str
) -> None:
    file = write(tmp_path, "a.jsonl", lines(rows))
    with pytest.raises(ConfigError, match=words):
        DatasetEnv(path=file, heldout_fraction=1e-9)


HELD = [row for row in sums(300) if split_of(row["prompt"]) == "heldout"]


@pytest.mark.parametrize("rows", [sums(2), sums(30), HELD])
@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_the_heldout_fraction_that_an_error_suggests_fills_both_splits(
    tmp_path: Path, rows: Sequence[Mapping[str, Any]], fraction: float
) -> None:
    file = write(tmp_path, "a.jsonl", lines(rows))
    with pytest.raises(ConfigError) as refused:
        DatasetEnv(path=file, heldout_fraction=fraction)
    suggested = re.search(
        r"to ([\d.]+), which holds out (\d+) of (\d+), or name", str(refused.value)
    )
    assert suggested is not None
    env = DatasetEnv(path=file, heldout_fraction=float(suggested[1]))
    assert len([*env.tasks("heldout")]) == int(suggested[2]) > 0
    assert len([*env.tasks("train")]) == len(rows) - int(suggested[2]) > 0


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
