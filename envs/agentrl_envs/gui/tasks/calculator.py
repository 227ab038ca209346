"""Tasks with a calculator, Galculator, alone and beside an editor."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import Moves, click, done, key, typed
from agentrl_envs.gui.tasks.state import FOLDER, documents, documents_are_as_wanted
from agentrl_envs.gui.tasks.template import Check, DesktopTemplate
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_NOTE = "result.txt"


def _sum(random: Random) -> tuple[str, str]:
    """Return an expression and what it comes to."""
    a, b, c = random.randint(12, 99), random.randint(12, 99), random.randint(100, 999)
    expression = random.choice((f"{a}*{b}+{c}", f"{c}-{a}*{b}", f"{a}+{b}+{c}", f"{a}*{b}"))
    terms, _, right = expression.partition("-")
    value = (c - a * b) if right else sum(_product(part) for part in terms.split("+"))
    return expression, f"{value}"


def _product(factors: str) -> int:
    product = 1
    for factor in factors.split("*"):
        product *= int(factor)
    return product


def _answer_make(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = f"Work out {expression} with the calculator. Answer with the number alone."
    return {"goal": goal, "expression": expression, "answer": value}


def _show_make(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = f"Work out {expression} with the calculator, and leave the result on its display."
    return {"goal": goal, "expression": expression, "shown": value}


def _press_make(random: Random) -> Wanted:
    digits = "".join(random.sample("123456789", random.randint(3, 5)))
    goal = f"Enter the number {digits} into the calculator with its buttons, and leave it there."
    return {"goal": goal, "digits": digits, "shown": digits}


def _clear_make(random: Random) -> Wanted:
    params = _press_make(random)
    other = "".join(random.sample("123456789", 3))
    goal = (
        f"Enter {params['digits']} into the calculator, clear it with the button AC, and enter "
        f"{other} instead. Leave that on the display."
    )
    return {"goal": goal, "digits": params["digits"], "instead": other, "shown": other}


def _note_make(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = (
        f"Work out {expression} with the calculator, write the result into the file {_NOTE}, which "
        "is open in the editor, and save it."
    )
    return {
        "goal": goal,
        "expression": expression,
        "value": value,
        "files": {_NOTE: ""},
        "after": {_NOTE: value},
    }


def _display(page: ObservedPage) -> str:
    """Return the text on a calculator's display."""
    frame = next(node for node in page.nodes if node.name == "galculator" and node.depth == 0)
    return next(node.value() for node in page.under(frame) if node.role == "textbox")


def _worked_out(page: ObservedPage, expression: str) -> Moves:
    """Press the buttons: keys that come as fast as a machine types them get lost in there."""
    for character in (*expression, "="):
        page = yield click(page, "togglebutton", character)
    return page


def _answer_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _worked_out(page, wanted["expression"])
    yield done(_display(page) if "answer" in wanted else "")


def _press_play(page: ObservedPage, wanted: Wanted) -> Script:
    for digit in wanted["digits"]:
        page = yield click(page, "togglebutton", digit)
    if "instead" in wanted:
        page = yield click(page, "togglebutton", "AC")
        for digit in wanted["instead"]:
            page = yield click(page, "togglebutton", digit)
    yield done()


def _note_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _worked_out(page, wanted["expression"])
    value = _display(page)
    editor = page.find("window", contains="Mousepad")
    text = next(node for node in page.under(editor) if node.role == "textbox")
    page = yield call("computer", action="click", element=text.id)
    page = yield typed(value)
    page = yield key("ctrl+s")
    yield done()


async def _answered(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    del desktop
    return said.strip() == wanted["answer"]


async def _is_shown(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    del said
    nodes = await desktop.nodes()
    if not any(node.name == "galculator" for node in nodes):
        return False
    return _display(ObservedPage(nodes=tuple(nodes))) == wanted["shown"]


def _alone(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    return [["galculator"]]


def _beside(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    return [["mousepad", f"/home/user/{FOLDER}/{_NOTE}"], ["galculator"]]


def _template(
    name: str, level: int, make: Callable[[Random], Wanted], play: Any, check: Check
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="calculator",
        level=level,
        make=make,
        play=play,
        check=check,
        programs=_alone,
    )


CALCULATOR: tuple[DesktopTemplate, ...] = (
    _template("answer_sum", 1, _answer_make, _answer_play, _answered),
    _template("show_sum", 1, _show_make, _answer_play, _is_shown),
    _template("press_digits", 1, _press_make, _press_play, _is_shown),
    _template("clear_and_press", 2, _clear_make, _press_play, _is_shown),
    DesktopTemplate(
        name="note_sum",
        program="calculator",
        level=3,
        make=_note_make,
        play=_note_play,
        check=documents_are_as_wanted,
        programs=_beside,
        files=documents,
    ),
)
"""Kinds of tasks with a calculator."""
