"""Streams of the commands: results to stdout, progress and errors to stderr.

A terminal gets tables and colours, all else plain lines. With `--json` stdout holds one JSON value.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agentrl.runtime.user_code import error_place

if TYPE_CHECKING:
    from rich.console import Console

STYLES: Mapping[str, int] = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}
"""Parameters of the escape sequences that begin a style."""
ESCAPED = "backslashreplace"
"""Half a surrogate pair, which a model can say, becomes an escape, in JSON the right one."""
GAP = "  "
"""Space between the columns of a plain table."""


class OutputStream:
    """A standard stream, looked up whenever something is written to it."""

    def __init__(self, find: Callable[[], TextIO]) -> None:
        self._find = find

    @property
    def file(self) -> TextIO:
        """Return the stream as it is now."""
        return self._find()

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at the stream, in a terminal that can do more than lines."""
        return self.file.isatty() and os.environ.get("TERM") != "dumb"

    def paint(self, text: str, style: str) -> str:
        """Return a text in a style of `STYLES`; as it is without a terminal or with NO_COLOR."""
        if not text or style not in STYLES or not self.is_terminal or os.environ.get("NO_COLOR"):
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def open_console(self) -> "Console":
        """Return a console for tables and bars, which honours NO_COLOR."""
        from rich.console import Console

        return Console(file=self.file, soft_wrap=True, force_terminal=self.is_terminal)


out = OutputStream(lambda: sys.stdout)
err = OutputStream(lambda: sys.stderr)


class LastingStream(io.TextIOWrapper):
    """A standard stream that a tool cannot close: what the command says comes after it."""

    def close(self) -> None:
        self.flush()


def keep_streams_open() -> None:
    """Let stdout and stderr of this process be open to its end, whatever runs in it."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def _lasting(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by the shell, `>&-`
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return LastingStream(
        stream.buffer,
        encoding=stream.encoding,
        errors=ESCAPED,
        line_buffering=stream.line_buffering,
    )


def show_text(text: str = "", stream: OutputStream = out) -> None:
    """Write a line as it is."""
    print(text, file=stream.file, flush=True)


def show_prompt(text: str) -> None:
    """Write a text to stdout whose answer is typed on the same line."""
    print(text, end="", file=out.file, flush=True)


def show_error(error: BaseException, message: str = "") -> None:
    """Write an error to stderr, in red on a terminal, and the line of the user's own code."""
    text = f"error: {message or error}"
    if place := error_place(error):
        text += f"\n  at {place}; --debug shows the traceback"
    show_text(err.paint(text, "red"), err)


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    *,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Write a table to stdout; its cells are shown as they are, without markup.

    A terminal gets a table as wide as it is, all else a line per row, however long. `styles` has
    the style of every cell that reads like its key.
    """
    if not out.is_terminal:
        for line in format_lines(headings, rows, title):
            show_text(line)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, title=title or None, title_justify="left")
    for column, heading in enumerate(headings):
        # The first column is what gets copied: it stays on one line.
        table.add_column(heading, overflow="fold", no_wrap=column == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    out.open_console().print(table)


def format_lines(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = ""
) -> list[str]:
    """Return a table as lines of equal columns, the title and the headings first."""
    cells = [[" ".join(cell.split()) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return [title, *lines] if title else lines


_json_file: TextIO | None = None
"""Stdout while it is reserved for JSON."""


@contextmanager
def reserve_stdout() -> Generator[None]:
    """Keep stdout for `show_json`; what else is written there, also by programs that this process
    starts, goes to stderr."""
    global _json_file
    stdout = sys.stdout
    stdout.flush()
    try:
        number = stdout.fileno()
    except (OSError, ValueError):  # what a test has put there
        number = None
    copy_number = None if number is None else os.dup(number)
    json_file = stdout
    if copy_number is not None:
        json_file = open(copy_number, "w", encoding="utf-8", errors=ESCAPED)  # noqa: SIM115
    _json_file = json_file
    if number is not None:
        os.dup2(sys.stderr.fileno(), number)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
        if copy_number is not None and number is not None:
            os.dup2(copy_number, number)
            json_file.close()
        _json_file = None


def show_json(value: object) -> None:
    """Write a value of dataclasses, mappings, sequences, paths and scalars as JSON to stdout."""
    text = json.dumps(_to_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=_json_file or sys.stdout, flush=True)


def _to_plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is not finite becomes null."""
    match value:
        case Mapping():
            return {str(key): _to_plain(item) for key, item in value.items()}  # pyright: ignore
        case str() | bool() | int() | None:
            return value
        case float():
            return value if abs(value) < float("inf") else None
        case Path():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _to_plain(asdict(value))
        case _:
            return [_to_plain(item) for item in value]
