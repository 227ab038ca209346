"""Consoles of the commands: results to stdout, progress and errors to stderr."""

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.runtime.user_code import error_place

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


class LastingStream(io.TextIOWrapper):
    """A standard stream that a tool cannot close: what the command says comes after it."""

    def close(self) -> None:
        self.flush()


def keep_streams_open() -> None:
    """Let stdout and stderr of this process be open to its end, whatever runs in it."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return LastingStream(
        stream.buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


def show_text(text: str, console: Console = out) -> None:
    """Write a line as it is, without markup."""
    console.print(text, markup=False, highlight=False)


def show_error(error: Exception, message: str = "") -> None:
    """Write an error as one red message without markup, and the line of the user's own code."""
    text = Text("error: ", style="bold red")
    text.append(message or str(error), style="red")
    if place := error_place(error):
        text.append(f"\n  at {place}; --debug shows the traceback", style="red")
    err.print(text)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Write a table to stdout; its cells are shown as they are, without markup."""
    table = Table(show_edge=False, title=title or None, title_justify="left")
    for column, heading in enumerate(headings):
        # The first column is what gets copied: it stays on one line.
        table.add_column(heading, overflow="fold", no_wrap=column == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
