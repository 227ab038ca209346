"""The file tools: exact texts, errors that name the way out, nothing outside the directory."""

import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.authoring.toolset import schemas_of
from agentrl.errors import SandboxError, ToolError
from agentrl.message import ToolCall
from agentrl.sandbox import Limits, SandboxSettings, using_sandbox
from agentrl.testing.tool import check_tool
from agentrl.tool import ToolContext
from agentrl_tools.edit import find_places, replace_once
from agentrl_tools.files import DEPTH_MAX, ENTRIES_MAX, TEXT_BYTES_MAX, Files, ReadFile
from agentrl_tools.line_numbers import LINE_CHARACTERS_MAX, count_lines, number_lines
from tests.support.watchdog import watched

CONTEXT = ToolContext(task_id="t", sample=0, seed=0)
LIMITS = Limits(output_bytes=1000, file_bytes=TEXT_BYTES_MAX + 10)
TEXTS = st.text("ab \n", max_size=30)


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    with using_sandbox(SandboxSettings(limits=LIMITS)):
        tool = Files()
        await tool.open(CONTEXT)
        yield tool
        await tool.close()


def test_the_schemas_are_four_or_those_chosen() -> None:
    names = [schema["function"]["name"] for schema in schemas_of([Files])]
    assert sorted(names) == ["edit_file", "list_files", "read_file", "write_file"]
    (schema,) = schemas_of([ReadFile])
    assert schema["function"]["parameters"]["required"] == ["path"]


@pytest.mark.parametrize(
    ("text", "first", "last", "shown"),
    [
        ("a\nb\n", 1, None, "     1\ta\n     2\tb"),
        ("a\nb", 1, None, "     1\ta\n     2\tb"),
        ("a\n\n", 1, None, "     1\ta\n     2\t"),
        ("a\nb\nc\n", 2, 2, "     2\tb"),
        ("a\nb\nc\n", 2, 9, "     2\tb\n     3\tc"),
        ("a\r\n\x0cb\n", 1, None, "     1\ta\r\n     2\t\x0cb"),
        ("", 1, None, ""),
    ],
)
def test_lines_are_numbered(text: str, first: int, last: int | None, shown: str) -> None:
    assert number_lines(text, first, last, characters_max=1000) == shown


@watched
def test_what_is_cut_is_said_and_how_to_go_on() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 101))
    shown = number_lines(text, 11, None, characters_max=45).split("\n")
    assert shown == [
        "    11\tline 11",
        "    12\tline 12",
        "    13\tline 13",
        "(cut at line 13 of 100; continue from 14)",
    ]
    assert len(number_lines(text, 11, None, characters_max=44).split("\n")) == 3
    assert number_lines(text, 11, 13, characters_max=45).split("\n") == shown[:3]
    long = "x" * (LINE_CHARACTERS_MAX + 7)
    cut = f"     1\t{'x' * LINE_CHARACTERS_MAX}... (7 more characters)"
    assert number_lines(long, 1, None, characters_max=10) == cut


@given(st.lists(st.text("ab\t\r", max_size=4), min_size=1, max_size=8), st.data())
def test_numbered_lines_are_the_file_s(lines: list[str], data: st.DataObject) -> None:
    """Kills: counting from 0, a last line that is left out or in, a number of the wrong line."""
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    shown = number_lines("\n".join(lines) + "\n", first, last, characters_max=10_000)
    want = [f"{number:>6}\t{lines[number - 1]}" for number in range(first, last + 1)]
    assert shown.split("\n") == want


@given(TEXTS, st.integers(0, 60))
def test_pages_together_are_the_whole_file(text: str, room: int) -> None:
    """Kills: going on with a line that was shown, or one too late; a page without a line."""
    lines = text.removesuffix("\n").split("\n") if text else []
    assert count_lines(text) == len(lines)
    seen: list[str] = []
    line: int | None = 1
    while line is not None and lines:
        *shown, last = number_lines(text, line, None, characters_max=room).split("\n")
        note = last.partition("continue from ")[2]
        seen += shown if note else [*shown, last]
        line = int(note.rstrip(")")) if note else None
    assert [part.split("\t")[1] for part in seen] == lines


@pytest.mark.parametrize("first", [1, 2**22, TEXT_BYTES_MAX])
def test_reading_takes_the_memory_of_what_is_shown(first: int) -> None:
    """Kills: a list of all lines; of eight million line feeds it stopped the loop for 22 s."""
    text = "\n" * TEXT_BYTES_MAX
    tracemalloc.start()
    try:
        shown = number_lines(text, first, None, characters_max=1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shown.startswith(f"{first:>6}\t")
    assert peak_bytes < 2**20


@given(TEXTS, st.text("ab \n", max_size=3), TEXTS)
def test_an_edit_is_a_replacement_of_the_one_place_there_is(text: str, old: str, new: str) -> None:
    """Kills: replacing the first of many, missing overlaps, a wrong line, an edit of nothing."""
    found = [at for at in range(len(text)) if old and text.startswith(old, at)]
    if len(found) == 1 and old != new:
        line = text[: found[0]].count("\n") + 1
        assert replace_once(text, old, new, path="f") == (text.replace(old, new), line)
    else:
        with pytest.raises(ToolError):
            replace_once(text, old, new, path="f")


@pytest.mark.parametrize(
    ("text", "old", "error"),
    [
        ("a\n", "", "old_text is empty"),
        ("a\n", "new", "identical"),
        ("a\nb\na\n", "a", r"2 times, starting on lines 1, 3; include"),
        ("aaa", "aa", r"2 times, starting on lines 1, 1; include"),
        ("a\n" * 20, "a", r"20 times, .* 9, 10, \.\.\.; include"),
        ("a\n" * 2000, "a", r"very often, starting"),
        ("a\r\nb\r\n", "a\nb", r"end in \\r\\n"),
        ("x\n  def f(a,  b):\n", "def f(a, b):", "white space, starting on line 2"),
        ("x\ny\nz\n", "y\nq", "first line is line 2"),
        ("x\n", "y", "copy the text exactly"),
    ],
)
def test_an_edit_that_cannot_be_says_why(text: str, old: str, error: str) -> None:
    with pytest.raises(ToolError, match=error):
        replace_once(text, old, "new", path="f")


def test_pathological_texts_take_no_time() -> None:
    """A million places are not counted, and no text is searched once for every place.

    Kills: a search of all of a long piece for each of a thousand places.
    """
    assert len(find_places("a" * 2**20, "a" * 2**13)) == 1000
    assert len(find_places("a" * 2**23, "a" * 2**22)) == 4
    assert len(find_places("a" * 2**23, "a" * (2**23 - 1))) == 2
    with pytest.raises(ToolError, match="starting on line 262145; copy"):
        replace_once("a\n" * 2**18 + "b c", "b  c", "d", path="f")
    with pytest.raises(ToolError, match="very often"):
        replace_once("a" * 2**22, "a", "b", path="f")


@pytest.mark.namespaces
async def test_files_are_written_read_edited_and_listed(files: Files) -> None:
    assert await files.write_file("src/a.py", "x = 1\ny = 'é'\n") == "Wrote 15 bytes to 'src/a.py'."
    assert await files.read_file("src/a.py") == "     1\tx = 1\n     2\ty = 'é'"
    assert await files.edit_file("src/a.py", "'é'\n", '"\n"\r\n') == "Edited 'src/a.py' on line 2."
    session = await files.session()
    assert await session.read("src/a.py") == b'x = 1\ny = "\n"\r\n'
    await files.write_file("empty", "")
    assert await files.read_file("empty") == "(empty file)"
    assert await files.list_files() == "empty (0 bytes)\nsrc/"
    assert await files.list_files(depth=2) == "empty (0 bytes)\nsrc/\nsrc/a.py (15 bytes)"
    assert await files.list_files("src") == "a.py (15 bytes)"


@pytest.mark.namespaces
async def test_what_the_model_got_wrong_is_told_to_it(files: Files) -> None:
    session = await files.session()
    await session.write("dir/bytes", b"ab\xff")
    await session.write("dir/large", b"x" * (TEXT_BYTES_MAX + 1))
    wrong = {
        "there is no 'nothing'": lambda: files.read_file("nothing"),
        "there is no 'none/x'": lambda: files.edit_file("none/x", "a", "b"),
        "'dir' is a directory": lambda: files.read_file("dir"),
        "'dir/bytes/x' is a file or goes through one": lambda: files.write_file("dir/bytes/x", ""),
        "'dir/bytes' is not UTF-8 text (byte 0xff at 2 of 3)": lambda: files.read_file("dir/bytes"),
        f"'dir/large' has {TEXT_BYTES_MAX + 1} bytes": lambda: files.read_file("dir/large"),
        "limits.file_bytes": lambda: files.write_file("x", "x" * (LIMITS.file_bytes + 1)),
        "starts with a slash": lambda: files.read_file("/etc/passwd"),
        "'../x' cannot be used": lambda: files.write_file("../x", ""),
        "the path is empty": lambda: files.read_file(""),
        "the path contains a NUL": lambda: files.read_file("a\0b"),
        "the content contains '\\ud800' at 1": lambda: files.write_file("x", "a\ud800"),
        "first_line=2, but 'dir/one' has lines 1 to 1": lambda: files.read_file("dir/one", 2),
        "first_line=0": lambda: files.read_file("dir/one", 0),
        "last_line=0 is before": lambda: files.read_file("dir/one", 1, 0),
        "depth=0": lambda: files.list_files(depth=0),
        f"it must be from 1 to {DEPTH_MAX}": lambda: files.list_files(depth=DEPTH_MAX + 1),
        "there is no 'missing'": lambda: files.list_files("missing"),
        "'dir/one' is a file or goes through one": lambda: files.list_files("dir/one"),
    }
    await session.write("dir/one", b"a")
    for words, call in wrong.items():
        with pytest.raises(ToolError) as told:
            await call()
        assert words in str(told.value)
        assert "Errno" not in str(told.value)


@pytest.mark.namespaces
async def test_a_listing_has_an_end_and_one_line_for_each_name(files: Files) -> None:
    session = await files.session()
    code = (
        "import os\n"
        "os.mkdir('d')\n"
        "for n in range(600): open(f'd/{n:03}', 'w').close()\n"
        "open(b'new\\nline', 'w').close()\n"
        "open(b'\\xff', 'w').close()\n"
        "os.symlink('d', 'link')\n"
        "os.mkfifo('pipe')\n"
    )
    made = await session.run(["python3", "-c", code])
    assert made.ok, made
    lines = (await files.list_files()).split("\n")
    assert lines == [
        "d/",
        "link (link)",
        "'new\\nline' (0 bytes)",
        "pipe (not a regular file)",
        "'\\udcff' (0 bytes)",
    ]
    *shown, note = (await files.list_files(depth=2)).split("\n")
    assert (len(shown), shown[1]) == (ENTRIES_MAX, "d/000 (0 bytes)")
    assert note == f"(cut after {ENTRIES_MAX} entries; list a directory below, or fewer levels)"


@pytest.mark.namespaces
async def test_they_keep_a_tool_s_promises() -> None:
    calls = [
        ToolCall("1", "write_file", {"path": "a/b", "content": "one\ntwo\n"}),
        ToolCall("2", "edit_file", {"path": "a/b", "old_text": "two", "new_text": "three"}),
        ToolCall("3", "read_file", {"path": "a/b", "first_line": 2}),
        ToolCall("4", "list_files", {"depth": 3}),
    ]
    proven = await check_tool(Files, calls=calls)
    assert "forks do not interfere" in proven


@pytest.mark.namespaces
async def test_a_lost_session_is_nobody_s_answer(files: Files) -> None:
    await files.write_file("a", "b")
    await (await files.session()).close()
    for call in (files.read_file("a"), files.write_file("a", ""), files.list_files()):
        with pytest.raises(SandboxError):
            await call
