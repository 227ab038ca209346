"""Bars in a terminal, a few lines in a log.

Mutants seen caught: a line per step; figures forgotten by an advance without any; time to go from
the whole instead of the rest, or from what an earlier run did; a phase that never ends.
"""

import io
import threading

import pytest

from agentrl.cli.console import OutputStream
from agentrl.cli.progress import PlainProgress, RichProgress, format_figures, show_progress


class Clock:
    """Time that only goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_per_tenth_and_not_per_step() -> None:
    lines: list[str] = []
    clock = Clock()
    with PlainProgress(lines.append, clock=clock).phase("train", total=200) as phase:
        for _ in range(200):
            clock.now += 1
            phase.advance(1, {"reward/mean": 0.5, "tokens_per_s": 812.4, "age/max": 3})
    assert lines[0] == "train: begins, 200 to do"
    assert lines[1] == "train: 20/200, reward 0.5, tokens/s 812, 20 s, 180 s left"
    assert lines[-1] == "train: 200/200, reward 0.5, tokens/s 812, ended after 200.0 s"
    assert len(lines) == 12


def test_a_fast_phase_is_two_lines() -> None:
    lines: list[str] = []
    clock = Clock()
    with PlainProgress(lines.append, clock=clock).phase("evaluate", total=50) as phase:
        for _ in range(50):
            clock.now += 0.05
            phase.advance()
    assert lines == ["evaluate: begins, 50 to do", "evaluate: 50/50, ended after 2.5 s"]


def test_a_slow_phase_shows_that_it_is_alive() -> None:
    lines: list[str] = []
    clock = Clock()
    with PlainProgress(lines.append, clock=clock).phase("train", total=1000) as phase:
        phase.advance(1, {"loss": 1.0})
        for _ in range(3):
            clock.now += 61
            phase.advance()
    assert [line.partition(",")[0] for line in lines[1:-1]] == [
        f"train: {done}/1000" for done in (2, 3, 4)
    ]
    assert all("loss 1" in line for line in lines[1:])


def test_a_phase_in_which_nothing_gets_done_shows_that_it_is_alive() -> None:
    """As while an endpoint takes a minute for its first answers."""
    lines: list[str] = []
    signs = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if "turns 3" in line:
            signs.set()

    progress = PlainProgress(write, clock=Clock(), first_sign_s=0.001)
    with progress.phase("evaluate", total=34) as phase:
        phase.advance(0, {"turns": 3})
        assert signs.wait(60)
    assert lines[0] == "evaluate: begins, 34 to do"
    assert "evaluate: 0/34, turns 3, 0 s" in lines
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_what_is_done_in_parts_counts_for_the_time_left() -> None:
    lines: list[str] = []
    clock = Clock()
    with PlainProgress(lines.append, clock=clock).phase("evaluate", total=10) as phase:
        clock.now += 60
        phase.update(2.5, {"turns": 40, "tokens": 1000})
        clock.now += 60
        phase.advance(1, {"turns": 44, "tokens": 1100})
        clock.now += 60
        phase.update(9.0, {"tokens": 2000})
    assert lines[1:-1] == [
        "evaluate: 0/10, turns 40, tokens 1000, 60 s, 180 s left",
        "evaluate: 1/10, turns 44, tokens 1100, 120 s, 360 s left",
        "evaluate: 1/10, tokens 2000, 180 s, 0 s left",
    ]


def test_what_goes_on_counts_its_own_time_alone() -> None:
    lines: list[str] = []
    clock = Clock()
    with PlainProgress(lines.append, clock=clock).phase("train", total=160, done=60) as phase:
        for _ in range(8):
            clock.now += 4
            phase.advance()
    assert lines == [
        "train: resumes after 60, 100 to do",
        "train: 64/160, 16 s, 384 s left",
        "train: 68/160, ended after 32.0 s",
    ]


def test_a_phase_that_breaks_says_where() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, clock=Clock())
    with pytest.raises(KeyboardInterrupt), progress.phase("train", total=4):
        raise KeyboardInterrupt
    progress.say("stopped")
    assert lines[1:] == ["train: 0/4, stopped after 0.0 s", "stopped"]


def test_a_phase_of_nothing() -> None:
    lines: list[str] = []
    with PlainProgress(lines.append, clock=Clock()).phase("train", total=0):
        pass
    assert lines[-1] == "train: 0/0, ended after 0.0 s"


def test_a_log_gets_plain_text() -> None:
    file = io.StringIO()
    with show_progress(OutputStream(lambda: file)) as progress:
        assert isinstance(progress, PlainProgress)
        progress.say("[red]as it is[/red]")
    assert file.getvalue() == "[red]as it is[/red]\n"


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress(OutputStream(lambda: file)) as progress:
        assert isinstance(progress, RichProgress)
        with (
            progress.phase("train", total=4) as phase,
            progress.phase("evaluate", total=2) as inner,
        ):
            inner.advance(2)
            phase.update(1.5, {"tokens": 30})
            phase.advance(3, {"reward/mean": 0.75})
            phase.advance(1)
        progress.say("[red]as it is[/red]")
    text = file.getvalue()
    for part in ("train", "4/4", "reward 0.75", "evaluate", "2/2", "ETA", "[red]as it is[/red]"):
        assert part in text


def test_only_what_is_worth_a_glance_is_shown() -> None:
    assert (
        format_figures({"b": 1, "tokens_per_s": 99.96, "reward": 0.12345})
        == "reward 0.123, tokens/s 100"
    )
    assert format_figures({}) == ""
