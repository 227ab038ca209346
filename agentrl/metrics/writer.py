"""The numbers of a run, step by step: `metrics.jsonl` always, other places where wanted."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO, cast

from agentrl.errors import ConfigError, contain
from agentrl.runtime.atomic_files import write_text

FILE = "metrics.jsonl"
NOT_FINITE = "metrics/not_finite"
"""Number of values of a line that are NaN or infinite; only on lines that have some."""


class MetricsSink(Protocol):
    """Another place for a run's numbers. One that fails is closed; the run goes on."""

    key: str
    """Its config key, such as `metrics.wandb`."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the finite figures of a step."""
        ...

    def close(self) -> None:
        """Finish. Idempotent."""
        ...


class MetricsWriter(AbstractContextManager["MetricsWriter"]):
    """Appends to a run's metrics. The one owner of its sinks; close it, or use it in `with`."""

    def __init__(
        self,
        folder: Path,
        *,
        sinks: Sequence[MetricsSink] = (),
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`say` hears, once, of each sink that fails."""
        self.not_finite = 0
        self._path = folder / FILE
        self._lines: TextIO | None = None
        self._sinks = [*sinks]
        self._say = say

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Append one line; it is with the operating system when this returns.

        JSON knows neither NaN nor infinity: such a figure is written as null, counted in the line's
        `metrics/not_finite`, and left out elsewhere.
        """
        if reserved := figures.keys() & {"step", "time", NOT_FINITE}:
            raise ValueError(f"{sorted(reserved)} are reserved keys; rename the metric")
        finite = {name: float(v) for name, v in figures.items() if math.isfinite(v)}
        line: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
        line |= {name: finite.get(name) for name in figures}
        if bad := len(figures) - len(finite):
            self.not_finite += bad
            line[NOT_FINITE] = bad
        lines = self._open_lines()
        lines.write(json.dumps(line, allow_nan=False) + "\n")
        lines.flush()
        for sink in [*self._sinks]:
            with contain(partial(self._drop_sink, sink)):
                sink.write(step, finite)

    def truncate_after(self, step: int) -> None:
        """Forget what was written of later steps: a run resumed at `step` does them again."""
        self._close_lines()
        if not self._path.exists():
            return
        lines = [line for line in read_metrics(self._path.parent) if line["step"] <= step]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))

    def close(self) -> None:
        """Close every sink. Idempotent."""
        self._close_lines()
        while self._sinks:
            sink = self._sinks.pop()
            with contain(partial(self._report, sink)):
                sink.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _drop_sink(self, sink: MetricsSink, error: Exception) -> None:
        self._sinks.remove(sink)
        self._report(sink, error)
        with contain(lambda _: None):  # it has failed, and that was said
            sink.close()

    def _report(self, sink: MetricsSink, error: Exception) -> None:
        if self._say is not None:
            self._say(
                f"{sink.key} failed ({type(error).__name__}: {error}): the run goes on without it, "
                f"and {FILE} has every step"
            )

    def _open_lines(self) -> TextIO:
        if self._lines is None:
            _drop_torn_line(self._path)
            self._lines = self._path.open("a", encoding="utf-8")
        return self._lines

    def _close_lines(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._lines = None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return a run's lines, None for NaN, no torn last one; `ConfigError` for a broken one."""
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"{path}: no such file; {folder} holds no run that has completed a step")
    whole = path.read_bytes().split(b"\n")[:-1]
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(whole, start=1):
        try:
            line = parse_line(text)
            if not isinstance(step := line.get("step"), int):
                raise ValueError(f"its step is {step!r:.80}")
        except ValueError as error:
            raise ConfigError(
                f"{path}:{number} is no line of metrics ({error}); the file was edited or the "
                "disk is faulty: delete this line"
            ) from error
        lines.append(line)
    return lines


def parse_line(text: bytes) -> dict[str, Any]:
    """Return the values of a line; `ValueError` for one that is not a JSON object."""
    try:
        line: Any = json.loads(text.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(line, dict):
        raise ValueError(f"it is a {type(line).__name__}")
    return cast("dict[str, Any]", line)


def _drop_torn_line(path: Path) -> None:
    """Cut a last line that a crash left without its end, so that the next one starts its own."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("rb+") as file:
                file.truncate(data.rfind(b"\n") + 1)
