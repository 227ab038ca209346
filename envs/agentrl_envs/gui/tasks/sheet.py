"""Tasks in a spreadsheet, Gnumeric: judged by the cells of the workbook that was saved."""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from agentrl.env import call
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import done, key, typed
from agentrl_envs.gui.tasks.state import FOLDER, Cells, cells_of, sheet
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import THINGS
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_CELL = re.compile(r"[A-Z]+[0-9]+")
_BOOK = f"{FOLDER}/book.gnumeric"


def _table(random: Random) -> Cells:
    things = random.sample(THINGS, 4)
    cells = {"A1": "Item", "B1": "Count"}
    for row, thing in enumerate(things, 2):
        cells |= {f"A{row}": thing, f"B{row}": f"{random.randint(10, 99)}"}
    return cells


def _changed(goal: str, cells: Cells, new: Cells) -> Wanted:
    after = {name: text for name, text in (cells | new).items() if text}
    return {"goal": goal, "cells": cells, "new": new, "after": after}


def _enter_make(random: Random) -> Wanted:
    cells = _table(random)
    name, value = f"{random.choice('CDE')}{random.randint(2, 9)}", f"{random.randint(100, 9999)}"
    return _changed(f"Enter {value} into cell {name} and save the workbook.", cells, {name: value})


def _correct_make(random: Random) -> Wanted:
    cells = _table(random)
    row, value = random.randint(2, 5), f"{random.randint(100, 999)}"
    goal = f"The count of {cells[f'A{row}']} must be {value}. Correct it and save the workbook."
    return _changed(goal, cells, {f"B{row}": value})


def _clear_make(random: Random) -> Wanted:
    cells = _table(random)
    row = random.randint(2, 5)
    goal = (
        f"Clear the cell with the count of {cells[f'A{row}']}, which is {cells[f'B{row}']}, leave "
        "the others, and save the workbook."
    )
    return _changed(goal, cells, {f"B{row}": ""})


def _row_make(random: Random) -> Wanted:
    cells = _table(random)
    thing = next(x for x in random.sample(THINGS, 5) if x not in cells.values())
    count = f"{random.randint(10, 99)}"
    goal = f"Add a row to the end of the table: {thing} in column A and {count} in column B. Save."
    return _changed(goal, cells, {"A6": thing, "B6": count})


def _sum_make(random: Random) -> Wanted:
    cells = _table(random)
    goal = (
        f"Enter the formula =SUM(B2:B5) into the cell below the count of {cells['A5']}, "
        f"{cells['B5']}, and save the workbook."
    )
    # It keeps the names of functions in small letters, whatever was typed.
    return _changed(goal, cells, {"B6": "=sum(B2:B5)"})


def _play(page: ObservedPage, wanted: Wanted) -> Script:
    for name, text in wanted["new"].items():
        box = next(n for n in page.all("textbox") if _CELL.fullmatch(n.value()))
        page = yield call("computer", action="triple_click", element=box.id)
        page = yield typed(f"{name}\n")
        page = yield typed(f"{text}\n") if text else key("Delete")
    yield key("ctrl+s")
    yield done()


async def _saved(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    del said
    data = await desktop.read(_BOOK)
    return data is not None and await run_in_thread(cells_of, data) == wanted["after"]


def _files(wanted: Wanted) -> Mapping[str, bytes]:
    return {_BOOK: sheet(wanted["cells"])}


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    return [["gnumeric", "--no-splash", f"/home/user/{_BOOK}"]]


def _template(
    name: str, level: int, make: Callable[[Random], Wanted], play: Any
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="spreadsheet",
        level=level,
        make=make,
        play=play,
        check=_saved,
        programs=_programs,
        files=_files,
    )


SHEET: tuple[DesktopTemplate, ...] = (
    _template("enter_cell", 2, _enter_make, _play),
    _template("correct_cell", 2, _correct_make, _play),
    _template("clear_cell", 2, _clear_make, _play),
    _template("add_table_row", 3, _row_make, _play),
    _template("sum_column", 3, _sum_make, _play),
)
"""Kinds of tasks in a spreadsheet."""
