"""Tasks in a spreadsheet, Gnumeric: judged by the cells of the workbook that was saved."""

import re
from functools import partial
from random import Random

from agentrl.env import call
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import finish, press, type_text
from agentrl_envs.gui.tasks.state import FOLDER, Cells, cells_of, sheet
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import THINGS
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_CELL = re.compile(r"[A-Z]+[0-9]+")
_BOOK = f"{FOLDER}/book.gnumeric"


def _draw_table(random: Random) -> Cells:
    things = random.sample(THINGS, 4)
    cells = {"A1": "Item", "B1": "Count"}
    for row, thing in enumerate(things, 2):
        cells |= {f"A{row}": thing, f"B{row}": f"{random.randint(10, 99)}"}
    return cells


def _change_cells(goal: str, cells: Cells, new: Cells) -> Wanted:
    after = {name: text for name, text in (cells | new).items() if text}
    return {"goal": goal, "cells": cells, "new": new, "after": after}


def _make_enter(random: Random) -> Wanted:
    cells = _draw_table(random)
    name, value = f"{random.choice('CDE')}{random.randint(2, 9)}", f"{random.randint(100, 9999)}"
    return _change_cells(
        f"Enter {value} into cell {name} and save the workbook.", cells, {name: value}
    )


def _make_correct(random: Random) -> Wanted:
    cells = _draw_table(random)
    row, value = random.randint(2, 5), f"{random.randint(100, 999)}"
    goal = f"The count of {cells[f'A{row}']} must be {value}. Correct it and save the workbook."
    return _change_cells(goal, cells, {f"B{row}": value})


def _make_clear(random: Random) -> Wanted:
    cells = _draw_table(random)
    row = random.randint(2, 5)
    goal = (
        f"Clear the cell with the count of {cells[f'A{row}']}, which is {cells[f'B{row}']}, leave "
        "the others, and save the workbook."
    )
    return _change_cells(goal, cells, {f"B{row}": ""})


def _make_row(random: Random) -> Wanted:
    cells = _draw_table(random)
    thing = next(x for x in random.sample(THINGS, 5) if x not in cells.values())
    count = f"{random.randint(10, 99)}"
    goal = f"Add a row to the end of the table: {thing} in column A and {count} in column B. Save."
    return _change_cells(goal, cells, {"A6": thing, "B6": count})


def _make_sum(random: Random) -> Wanted:
    cells = _draw_table(random)
    goal = (
        f"Enter the formula =SUM(B2:B5) into the cell below the count of {cells['A5']}, "
        f"{cells['B5']}, and save the workbook."
    )
    # It keeps the names of functions in small letters, whatever was typed.
    return _change_cells(goal, cells, {"B6": "=sum(B2:B5)"})


def _play(page: ObservedPage, wanted: Wanted) -> Script:
    for name, text in wanted["new"].items():
        box = next(n for n in page.all("textbox") if _CELL.fullmatch(n.value()))
        page = yield call("computer", action="triple_click", element=box.id)
        page = yield type_text(f"{name}\n")
        page = yield type_text(f"{text}\n") if text else press("Delete")
    yield press("ctrl+s")
    yield finish()


async def _is_saved(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    data = await desktop.read(_BOOK)
    return data is not None and await run_in_thread(cells_of, data) == wanted["after"]


_template = partial(
    DesktopTemplate,
    program="spreadsheet",
    play=_play,
    check=_is_saved,
    programs=lambda wanted: [["gnumeric", "--no-splash", f"/home/user/{_BOOK}"]],
    files=lambda wanted: {_BOOK: sheet(wanted["cells"])},
)
SHEET: tuple[DesktopTemplate, ...] = (
    _template("enter_cell", 2, _make_enter),
    _template("correct_cell", 2, _make_correct),
    _template("clear_cell", 2, _make_clear),
    _template("add_table_row", 3, _make_row),
    _template("sum_column", 3, _make_sum),
)
"""Kinds of tasks in a spreadsheet."""
