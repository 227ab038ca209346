"""Tasks with a calculator, Galculator, alone and beside an editor."""

import math
from functools import partial
from random import Random

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import Moves, click, finish, press, type_text
from agentrl_envs.gui.tasks.state import FOLDER, are_documents_right, documents
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_NOTE = "result.txt"


def _sum(random: Random) -> tuple[str, str]:
    """Return an expression and what it comes to."""
    a, b, c = random.randint(12, 99), random.randint(12, 99), random.randint(100, 999)
    expression = random.choice((f"{a}*{b}+{c}", f"{c}-{a}*{b}", f"{a}+{b}+{c}", f"{a}*{b}"))
    terms, _, right = expression.partition("-")
    value = (
        (c - a * b)
        if right
        else sum(math.prod(map(int, part.split("*"))) for part in terms.split("+"))
    )
    return expression, f"{value}"


def _make_answer(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = f"Work out {expression} with the calculator. Answer with the number alone."
    return {"goal": goal, "expression": expression, "answer": value}


def _make_show(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = f"Work out {expression} with the calculator, and leave the result on its display."
    return {"goal": goal, "expression": expression, "shown": value}


def _make_press(random: Random) -> Wanted:
    digits = "".join(random.sample("123456789", random.randint(3, 5)))
    goal = f"Enter the number {digits} into the calculator with its buttons, and leave it there."
    return {"goal": goal, "digits": digits, "shown": digits}


def _make_clear(random: Random) -> Wanted:
    params = _make_press(random)
    other = "".join(random.sample("123456789", 3))
    goal = (
        f"Enter {params['digits']} into the calculator, clear it with the button AC, and enter "
        f"{other} instead. Leave that on the display."
    )
    return {"goal": goal, "digits": params["digits"], "instead": other, "shown": other}


def _make_note(random: Random) -> Wanted:
    expression, value = _sum(random)
    goal = (
        f"Work out {expression} with the calculator, write the result into the file {_NOTE}, which "
        "is open in the editor, and save it."
    )
    return {
        "goal": goal, "expression": expression, "value": value, "files": {_NOTE: ""},
        "after": {_NOTE: value},
    }  # fmt: skip


def _display(page: ObservedPage) -> str:
    frame = next(node for node in page.nodes if node.name == "galculator" and node.depth == 0)
    return next(node.value() for node in page.under(frame) if node.role == "textbox")


def _calculate(page: ObservedPage, expression: str) -> Moves:
    """Press the buttons: keys that come as fast as a machine types them get lost in there."""
    for character in (*expression, "="):
        page = yield click(page, "togglebutton", character)
    return page


def _play_answer(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _calculate(page, wanted["expression"])
    yield finish(_display(page) if "answer" in wanted else "")


def _play_press(page: ObservedPage, wanted: Wanted) -> Script:
    for digit in wanted["digits"]:
        page = yield click(page, "togglebutton", digit)
    if "instead" in wanted:
        page = yield click(page, "togglebutton", "AC")
        for digit in wanted["instead"]:
            page = yield click(page, "togglebutton", digit)
    yield finish()


def _play_note(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _calculate(page, wanted["expression"])
    value = _display(page)
    editor = page.find("window", contains="Mousepad")
    text = next(node for node in page.under(editor) if node.role == "textbox")
    page = yield call("computer", action="click", element=text.id)
    page = yield type_text(value)
    page = yield press("ctrl+s")
    yield finish()


async def _is_answer_right(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    return said.strip() == wanted["answer"]


async def _is_shown(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    nodes = await desktop.nodes()
    if not any(node.name == "galculator" for node in nodes):
        return False
    return _display(ObservedPage(nodes=tuple(nodes))) == wanted["shown"]


_template = partial(DesktopTemplate, program="calculator", programs=lambda wanted: [["galculator"]])
CALCULATOR: tuple[DesktopTemplate, ...] = (
    _template("answer_sum", 1, _make_answer, _play_answer, _is_answer_right),
    _template("show_sum", 1, _make_show, _play_answer, _is_shown),
    _template("press_digits", 1, _make_press, _play_press, _is_shown),
    _template("clear_and_press", 2, _make_clear, _play_press, _is_shown),
    _template(
        *("note_sum", 3, _make_note, _play_note, are_documents_right),
        programs=lambda wanted: [["mousepad", f"/home/user/{FOLDER}/{_NOTE}"], ["galculator"]],
        files=documents,
    ),
)
"""Kinds of tasks with a calculator."""
