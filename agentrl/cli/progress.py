"""Progress of a run: bars in a terminal, now and then a line in a log."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from agentrl.cli.console import OutputStream, err, show_text
from agentrl.runtime.progress import NOTHING, ProgressPhase, RunProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

SHOWN: Mapping[str, str] = {
    "reward/mean": "reward",
    "reward": "reward",
    "loss": "loss",
    "step": "step",
    "trajectories": "trajectories",
    "turns": "turns",
    "tokens": "tokens",
    "tokens_per_s": "tokens/s",
}
"""Metrics that are shown beside a bar, with their labels; a step reports dozens."""

TENTHS = 10
QUIET_S = 5.0
"""A log gets no two lines of a phase closer than this, however fast it goes ..."""
LONGEST_QUIET_S = 60.0
"""... and one at least this often while it goes on."""
FIRST_SIGN_S = 10.0
"""A log has a line after so long, and then ever less often, while nothing gets done."""


@contextmanager
def show_progress(stream: OutputStream = err) -> Generator[RunProgress]:
    """Yield the `progress` of a `train` or an `evaluate`, shown on a stream until the block ends.

    A terminal gets bars, a log or a notebook now and then a line. Two blocks at once cannot have
    bars in one terminal.

    Args:
        stream: Standard output or error; by default the latter.
    """
    if not stream.is_terminal:
        yield PlainProgress(lambda line: show_text(line, stream))
        return
    progress = RichProgress(stream.open_console())
    with progress.bars:
        yield progress


class RichProgress:
    """One line per phase with bar, figures, elapsed time and time to go, within `bars`."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
        )

    @contextmanager
    def phase(self, name: str, *, total: int, done: int = 0) -> Generator[ProgressPhase]:
        """Add a line; it stays, as it was last, when the phase ends."""
        task = self.bars.add_task(name, total=total, completed=done, figures="")
        try:
            yield _Bar(self.bars, task)
        finally:
            self.bars.stop_task(task)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(text, markup=False, highlight=False)


class _Bar:
    def __init__(self, bars: "Progress", task: "TaskID") -> None:
        self._bars, self._task, self._words = bars, task, ""
        self._begun = 0.0

    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        self._bars.update(self._task, advance=amount)
        self.update(max(self._begun - amount, 0.0), figures)

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        self._words = format_figures(figures) or self._words
        self._bars.update(self._task, advance=begun - self._begun, figures=self._words)
        self._begun = begun


class PlainProgress:
    """Lines for a log: about one per tenth of a phase, one at its end, and signs of life."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        first_sign_s: float = FIRST_SIGN_S,
    ) -> None:
        self._write = write
        self.clock = clock
        self.first_sign_s = first_sign_s

    def phase(
        self, name: str, *, total: int, done: int = 0
    ) -> AbstractContextManager[ProgressPhase]:
        """Write that a phase begins, goes on and ends."""
        return _Lines(self, name, total=total, done=done)

    def say(self, text: str) -> None:
        """Write a line."""
        self._write(text)


class _Lines:
    """The lines of one phase; a thread, which ends with it, writes while nothing gets done."""

    def __init__(self, progress: PlainProgress, name: str, *, total: int, done: int) -> None:
        self._name, self._total = name, total
        self._write, self._clock = progress.say, progress.clock
        self._done = self._before = done
        self._tenths = done * TENTHS // max(total, 1)
        self._begun = 0.0
        self._words = ""
        self._began = self._last = self._clock()
        self._first_sign_s = progress.first_sign_s
        self._is_over = threading.Event()
        self._signs = threading.Thread(target=self._show_signs, name="progress", daemon=True)

    def __enter__(self) -> "_Lines":
        before = f"resumes after {self._before}" if self._before else "begins"
        self._write(f"{self._name}: {before}, {self._total - self._before} to do")
        self._signs.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._is_over.set()
        self._signs.join()
        verb = "ended" if kind is None else "stopped"
        self._write(self._line(f"{verb} after {self._clock() - self._began:.1f} s"))

    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        self._done += amount
        self.update(max(self._begun - amount, 0.0), figures)

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        self._begun = begun
        self._words = format_figures(figures) or self._words
        now, tenths = self._clock(), self._done * TENTHS // max(self._total, 1)
        quiet_s = now - self._last
        if quiet_s >= LONGEST_QUIET_S or (tenths > self._tenths and quiet_s >= QUIET_S):
            self._write(self._line(self._format_times(now)))
            self._tenths, self._last = tenths, now

    def _format_times(self, now: float) -> str:
        """Return the seconds so far, and those left as soon as anything is done, also in part."""
        passed_s, done_count = now - self._began, self._done - self._before + self._begun
        if done_count <= 0:
            return f"{passed_s:.0f} s"
        rest_count = self._total - self._done - self._begun
        return f"{passed_s:.0f} s, {max(passed_s / done_count * rest_count, 0):.0f} s left"

    def _show_signs(self) -> None:
        wait_s, before = self._first_sign_s, self._done
        while not self._is_over.wait(wait_s):
            if self._done == before:
                self._write(self._line(self._format_times(self._clock())))
                wait_s = min(2 * wait_s, LONGEST_QUIET_S)
            before = self._done

    def _line(self, timing: str) -> str:
        parts = [f"{self._name}: {self._done}/{self._total}", self._words, timing]
        return ", ".join(part for part in parts if part)


def format_figures(figures: Mapping[str, float]) -> str:
    """Return the figures worth a glance, in the order of `SHOWN`."""
    label_values = {label: figures[name] for name, label in SHOWN.items() if name in figures}
    return ", ".join(f"{label} {_number(value)}" for label, value in label_values.items())


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
