"""Tasks in a text editor, Mousepad."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, finish, press, type_text
from agentrl_envs.gui.tasks.state import (
    FOLDER,
    are_documents_right,
    documents,
    is_answered,
)
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import CITIES, FIRST_NAMES, LAST_NAMES, WORDS
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Script

_NAMES = ("notes", "letter", "list", "draft", "ideas", "minutes", "report", "plan")
_CASES: dict[str, Callable[[str], str]] = {"To Uppercase": str.upper, "To Lowercase": str.lower}


def draw_sentence(random: Random) -> str:
    """Return a line nobody else writes."""
    who = f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
    words = " ".join(random.sample(WORDS, 3))
    return f"{who} of {random.choice(CITIES)}: {words}, {random.randint(10, 999)}"


def _draw_lines(random: Random, count: int) -> list[str]:
    return [draw_sentence(random) for _ in range(count)]


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _draw_name(random: Random) -> str:
    return f"{random.choice(_NAMES)}-{random.randint(10, 99)}.txt"


def _edit(goal: str, name: str, before: str, after: str, **more: Any) -> Wanted:
    return {"goal": goal, "open": [name], "files": {name: before}, "after": {name: after}, **more}


def _make_write(random: Random) -> Wanted:
    name, line = _draw_name(random), draw_sentence(random)
    goal = f"Write this line into the empty file {name}, which is open, and save it: {line}"
    return _edit(goal, name, "", line, text=line)


def _make_append(random: Random) -> Wanted:
    name, lines, line = _draw_name(random), _draw_lines(random, 3), draw_sentence(random)
    goal = f"Add this line at the end of {name} and save the file: {line}"
    return _edit(goal, name, _join_lines(lines), _join_lines([*lines, line]), text=line)


def _make_delete_line(random: Random) -> Wanted:
    name, lines = _draw_name(random), _draw_lines(random, 5)
    at = random.randrange(5)
    goal = f'Delete the line that begins with "{lines[at].split(":")[0]}" in {name} and save it.'
    if len({line.split(":")[0] for line in lines}) < 5:
        raise UnfitChoice
    new_lines = lines[:at] + lines[at + 1 :]
    return _edit(goal, name, _join_lines(lines), _join_lines(new_lines), line=at)


def _make_replace(random: Random) -> Wanted:
    name, lines = _draw_name(random), _draw_lines(random, 4)
    old, new = random.sample(WORDS, 2)
    lines[0], lines[2] = f"{lines[0]} {old}", f"{old} and {old}, {lines[2]}"
    text = _join_lines(lines)
    if new in text:
        raise UnfitChoice
    goal = f'Replace "{old}" by "{new}" everywhere in {name} and save the file.'
    return _edit(goal, name, text, text.replace(old, new), old=old, new=new)


def _make_convert(random: Random) -> Wanted:
    name, lines, case = _draw_name(random), _draw_lines(random, 2), random.choice(list(_CASES))
    letters = "capital letters" if case == "To Uppercase" else "small letters"
    goal = f"Turn the whole text of {name} into {letters} and save the file."
    return _edit(goal, name, _join_lines(lines), _CASES[case](_join_lines(lines)), case=case)


def _make_save_as(random: Random) -> Wanted:
    name, new, text = _draw_name(random), _draw_name(random), _join_lines(_draw_lines(random, 3))
    if name == new:
        raise UnfitChoice
    goal = f"Save a copy of {name}, which is open, under the name {new} in the same folder."
    return _edit(goal, name, text, text, new=new) | {"after": {name: text, new: text}}


def _make_copy(random: Random) -> Wanted:
    one, two = _draw_name(random), _draw_name(random)
    if one == two:
        raise UnfitChoice
    first, second = _join_lines(_draw_lines(random, 2)), _join_lines(_draw_lines(random, 2))
    goal = f"Copy the whole text of {one} to the end of {two}, and save {two}. Both are open."
    return {
        "goal": goal,
        "open": [one, two],
        "files": {one: first, two: second},
        "after": {one: first, two: second + first},
    }


def _make_read_line(random: Random) -> Wanted:
    name, lines = _draw_name(random), _draw_lines(random, 8)
    at = random.randint(2, 8)
    number = lines[at - 1].rpartition(" ")[2]
    goal = f"Which number stands at the end of line {at} of {name}? Answer with the number alone."
    return _edit(goal, name, _join_lines(lines), _join_lines(lines), line=at) | {"answer": number}


def _save() -> Script:
    yield press("ctrl+s")
    yield finish()


def _play_write(page: ObservedPage, wanted: Wanted) -> Script:
    yield press("ctrl+End")
    yield type_text(wanted["text"])
    yield from _save()


def _play_delete_line(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield press("ctrl+Home")
    for _ in range(wanted["line"]):
        page = yield press("Down")
    page = yield click(page, "menu", "Edit")
    page = yield click(page, "menuitem", "Delete Line")
    yield from _save()


def _play_replace(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "menu", "Search")
    page = yield click(page, "menuitem", "Find and Replace...")
    page = yield type_text(wanted["old"])
    dialog = page.find("dialog", "Find and Replace")
    replacement = [node for node in page.under(dialog) if node.role == "textbox"][1]
    page = yield call("computer", action="click", element=replacement.id)
    page = yield type_text(wanted["new"])
    page = yield click(page, "checkbox", "Replace all in:")
    page = yield click(page, "button", "Replace All")
    page = yield click(page, "button", "Close")
    yield from _save()


def _play_convert(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield press("ctrl+a")
    page = yield click(page, "menu", "Edit")
    page = yield click(page, "menu", "Convert")
    page = yield click(page, "menuitem", wanted["case"])
    yield from _save()


def _play_save_as(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "menu", "File")
    page = yield click(page, "menuitem", "Save As...")
    page = yield press("ctrl+a")
    page = yield type_text(wanted["new"])
    page = yield click(page, "button", "Save")
    yield finish()


def _play_copy(page: ObservedPage, wanted: Wanted) -> Script:
    one, two = wanted["open"]
    page = yield click(page, "tab", one)
    page = yield press("ctrl+a")
    page = yield press("ctrl+c")
    page = yield click(page, "tab", two)
    page = yield press("ctrl+End")
    page = yield press("ctrl+v")
    yield from _save()


def _play_read_line(page: ObservedPage, wanted: Wanted) -> Script:
    text = next(node for node in page.nodes if node.role == "textbox").value()
    yield finish(text.split("\n")[wanted["line"] - 1].rpartition(" ")[2])


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    return [["mousepad", *(f"/home/user/{FOLDER}/{name}" for name in wanted["open"])]]


_template = partial(
    DesktopTemplate,
    program="editor",
    check=are_documents_right,
    programs=_programs,
    files=documents,
)
EDITOR: tuple[DesktopTemplate, ...] = (
    _template("write_line", 1, _make_write, _play_write),
    _template("append_line", 1, _make_append, _play_write),
    _template("delete_line", 2, _make_delete_line, _play_delete_line),
    _template("replace_word", 3, _make_replace, _play_replace),
    _template("change_case", 2, _make_convert, _play_convert),
    _template("save_copy", 2, _make_save_as, _play_save_as),
    _template("copy_text", 3, _make_copy, _play_copy),
    _template("read_line", 1, _make_read_line, _play_read_line, check=is_answered),
)
"""Kinds of tasks in a text editor."""
