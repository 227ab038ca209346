"""Where commands write: results to stdout, progress and errors to stderr."""

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


OURS = ("agentrl", "agentrl_envs", "agentrl_tools", "agentrl_sandbox")


def show_error(error: Exception, message: str = "") -> None:
    """Write an error as one red message; what it says is shown as it is, without markup.

    Below it stands the line of the user's own code that it comes from, if it comes from any.
    """
    text = Text("error: ", style="bold red")
    text.append(message or str(error), style="red")
    if place := place_of(error):
        text.append(f"\n  at {place}; --debug shows the traceback", style="red")
    err.print(text)


def place_of(error: BaseException) -> str:
    """Return where in the user's code `error`, or what caused it, was raised; "" for nowhere."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in reversed(causes):
        own = [(frame, line) for frame, line in _frames(cause) if _is_users(frame)]
        if own:
            frame, line = own[-1]
            file = os.path.relpath(frame.f_code.co_filename)
            return f"{file}:{line}, in {frame.f_code.co_name}"
    return ""


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_users(frame: FrameType) -> bool:
    """Whether a frame is neither ours nor a library's."""
    names: Any = frame.f_globals.get("__name__", "")
    file = Path(frame.f_code.co_filename)
    library = file.is_relative_to(sysconfig.get_path("stdlib")) or {
        "site-packages",
        "dist-packages",
    } & {*file.parts}
    return file.is_file() and not library and str(names).partition(".")[0] not in OURS


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Write a table to stdout; its cells are shown as they are, without markup."""
    table = Table(show_edge=False, title=title or None, title_justify="left")
    for column, heading in enumerate(headings):
        # The first column is what gets copied: it stays on one line.
        table.add_column(heading, overflow="fold", no_wrap=column == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
