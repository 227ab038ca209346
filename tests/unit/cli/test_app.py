"""Which command lines ask other distributions for commands: that takes a tenth of a second.

Mutants seen caught: an unknown word taken for one of ours; a key or an option taken for a command.
"""

import os
import sys
from pathlib import Path

import pytest

from agentrl.cli.app import needs_no_others
from tests.support.commands import agentrl


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("train a.yaml run.steps=3", True),
        ("--debug config explain", True),
        ("--version", True),
        ("trian a.yaml", False),
        ("--help", False),
        ("--markdown", False),
        ("", False),
    ],
)
def test_a_command_of_ours_needs_no_others(line: str, alone: bool) -> None:
    assert needs_no_others(line.split()) is alone


def test_a_working_directory_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutant seen caught: the exception of `getcwd` left to itself."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, out, err = agentrl(capsys, "configs")
    assert (code, out) == (2, "")
    assert err == "error: the working directory has been deleted; change to another one\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["binary", "folder"])
def test_what_is_no_trace_is_refused(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutants seen caught: each of the two exceptions left to itself."""
    file = tmp_path / "a.jsonl"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    code, out, err = agentrl(capsys, "trace", "show", str(file), "--json")
    kind = "a folder" if content is None else "not UTF-8 text"
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file} is {kind}, not a trace; name a file that ")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("view", "runs/none"), "--out"),
        (("trace", "record", "."), "--output"),
        (("simulate", "none"), "--picture"),
    ],
)
def test_a_place_that_holds_no_file_is_refused_before_the_work(
    words: tuple[str, ...],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that took the place of a pipe or of `/dev/null` would be in the way of every program.

    Mutant seen caught: each of the three commands without the check.
    """
    monkeypatch.chdir(tmp_path)
    Path("trace.jsonl").write_text('{"prompt": 1, "reset_s": 0, "turns": [[1, 0, 1]]}\n')
    os.mkfifo("pipe")
    for place, rule in ((".", "a folder"), ("/", "a folder"), ("pipe", "a device or a pipe")):
        code, out, err = agentrl(capsys, *words, option, place)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {option} is {place}, which is {rule}")


def test_a_recording_is_refused_before_it_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutant seen caught: the file is first looked at when every episode has been played."""
    file = tmp_path / "a.jsonl"
    file.mkdir()
    code, out, err = agentrl(capsys, "record", "nosuch/Env-v0", str(file))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: FILE is {file}, which is a folder; give the path of a file")
    file = tmp_path / "tasks.jsonl"
    file.write_text("{}\n")
    code, out, err = agentrl(capsys, "record", f"dataset:{file}", str(file))
    assert (code, out, file.read_text()) == (2, "", "{}\n")
    assert err.startswith(f"error: FILE is {file}, which exists, and recordings of the gold player")


@pytest.mark.parametrize("words", [("proximal",), ("--json",), ("--markdown",)])
def test_methods_are_listed_without_an_import_of_any(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutant seen caught: the catalogue read, which takes seconds and the extra `train`."""
    monkeypatch.setitem(sys.modules, "agentrl.learn.catalogue", None)
    monkeypatch.delattr("agentrl.learn.catalogue", raising=False)
    code, out, err = agentrl(capsys, "methods", *words)
    assert (code, err) == (0, "")
    assert "log_linear" in out


def test_simulate_takes_what_train_takes_or_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants seen caught: keys and `--trace` beside a trace ignored; a step without an end."""
    words = ("rollout.tasks_per_step=3", "--no-recommend", "--steps", "2")
    code, out, _ = agentrl(capsys, "simulate", "quickstart", *words)
    assert code == 0
    assert out.startswith("agentic: ")
    assert "; 3 groups of 8, " in out
    for extra in (("rollout.tasks_per_step=3",), ("--trace", "lognormal")):
        code, out, err = agentrl(capsys, "simulate", "agentic", *extra)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: agentic is a trace, which {' '.join(extra)} cannot change;")
    code, out, err = agentrl(capsys, "simulate", "agentic", "--train-s", "inf")
    assert (code, out) == (2, "")
    assert "Input should be less than or equal to 1000000" in err
    code, out, err = agentrl(capsys, "simulate", "quickstrat", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: 'quickstrat' is neither a file nor the name of a config or trace")
