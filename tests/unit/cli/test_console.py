"""What commands write: plain lines in a log, colours in a terminal, JSON where it is asked for.

Mutants seen caught: lines padded at their end; a cell of two lines kept; NO_COLOR not looked at;
a number that is not finite written as NaN; stdout given back before the JSON is written.
"""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.cli.console import (
    OutputStream,
    format_lines,
    keep_streams_open,
    out,
    reserve_stdout,
    show_json,
    show_table,
    show_text,
)


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_table_in_a_log_is_a_line_per_row() -> None:
    long = "x" * 300
    lines = format_lines(("name", "what it is"), [("a", long), ("longer", "two\n lines")], "some")
    assert lines == ["some", "name    what it is", f"a       {long}", "longer  two lines"]
    assert format_lines(("a", "b"), []) == ["a  b"]


def test_stdout_of_a_test_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("", "[b]"), [("[red]as it is[/red]", "")], styles={"": "red"})
    assert capsys.readouterr().out == "                     [b]\n[red]as it is[/red]\n"


def test_only_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, log = OutputStream(Terminal), OutputStream(io.StringIO)
    assert terminal.paint("ok", "green") == "\x1b[32mok\x1b[0m"
    assert log.paint("ok", "green") == "ok"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("ok", "green") == "ok"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.paint("ok", "green") == "ok"
    assert not terminal.is_terminal


@dataclass
class Found:
    where: Path
    share: float
    names: tuple[str, ...]


def test_json_has_stdout_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with reserve_stdout():
        show_text("a line of the command")
        sys.stdout.write("a line of an environment\n")
        show_json([Found(Path("a/b"), float("nan"), ("é",)), {1: None, "x": True}])
    show_text("after")
    out, err = capsys.readouterr()
    shown, _, after = out.rpartition("]\n")
    assert json.loads(f"{shown}]") == [
        {"where": "a/b", "share": None, "names": ["é"]},
        {"1": None, "x": True},
    ]
    assert err == "a line of the command\na line of an environment\n"
    assert after == "after\n"


def test_stdout_is_given_back_after_an_error() -> None:
    before = sys.stdout
    with pytest.raises(KeyError), reserve_stdout():
        raise KeyError
    assert sys.stdout is before


def test_a_stream_that_the_shell_has_closed_takes_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant seen caught: the missing stream left as it is."""
    monkeypatch.setattr("sys.stdout", None)
    keep_streams_open()
    with sys.stdout:
        show_text("nobody reads this")
        assert not out.is_terminal


@pytest.mark.parametrize("reserved", [False, True], ids=["text", "json"])
def test_half_a_surrogate_pair_is_an_escape(
    reserved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants seen caught: the stream is strict, and so is the file of the JSON."""
    written = tmp_path / "stdout"
    with (
        written.open("w", encoding="utf-8") as stdout,
        (tmp_path / "stderr").open("w", encoding="utf-8") as stderr,
    ):
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        keep_streams_open()
        if reserved:
            with reserve_stdout():
                show_json("é \ud800")
        else:
            show_text("é \ud800")
        sys.stdout.flush()
    assert written.read_text(encoding="utf-8") == ('"é \\ud800"\n' if reserved else "é \\ud800\n")
