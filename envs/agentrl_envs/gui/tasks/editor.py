"""Tasks in a text editor, Mousepad."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, done, key, open_menu, typed
from agentrl_envs.gui.tasks.state import (
    FOLDER,
    documents,
    documents_are_as_wanted,
    said_the_answer,
)
from agentrl_envs.gui.tasks.template import Check, DesktopTemplate
from agentrl_envs.gui.tasks.words import CITIES, FIRST_NAMES, LAST_NAMES, WORDS
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Script

_NAMES = ("notes", "letter", "list", "draft", "ideas", "minutes", "report", "plan")
_CASES: dict[str, Callable[[str], str]] = {"To Uppercase": str.upper, "To Lowercase": str.lower}


def sentence(random: Random) -> str:
    """Return a line nobody else writes."""
    who = f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
    words = " ".join(random.sample(WORDS, 3))
    return f"{who} of {random.choice(CITIES)}: {words}, {random.randint(10, 999)}"


def _text(random: Random, lines: int) -> list[str]:
    return [sentence(random) for _ in range(lines)]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _file(random: Random) -> str:
    return f"{random.choice(_NAMES)}-{random.randint(10, 99)}.txt"


def _changed(goal: str, name: str, before: str, after: str, **more: Any) -> Wanted:
    return {"goal": goal, "open": [name], "files": {name: before}, "after": {name: after}, **more}


def _write_make(random: Random) -> Wanted:
    name, line = _file(random), sentence(random)
    goal = f"Write this line into the empty file {name}, which is open, and save it: {line}"
    return _changed(goal, name, "", line, text=line)


def _append_make(random: Random) -> Wanted:
    name, lines, line = _file(random), _text(random, 3), sentence(random)
    goal = f"Add this line at the end of {name} and save the file: {line}"
    return _changed(goal, name, _joined(lines), _joined([*lines, line]), text=line)


def _delete_line_make(random: Random) -> Wanted:
    name, lines = _file(random), _text(random, 5)
    at = random.randrange(5)
    goal = f'Delete the line that begins with "{lines[at].split(":")[0]}" in {name} and save it.'
    if len({line.split(":")[0] for line in lines}) < 5:
        raise UnfitChoice
    new_lines = lines[:at] + lines[at + 1 :]
    return _changed(goal, name, _joined(lines), _joined(new_lines), line=at)


def _replace_make(random: Random) -> Wanted:
    name, lines = _file(random), _text(random, 4)
    old, new = random.sample(WORDS, 2)
    lines[0], lines[2] = f"{lines[0]} {old}", f"{old} and {old}, {lines[2]}"
    text = _joined(lines)
    if new in text:
        raise UnfitChoice
    goal = f'Replace "{old}" by "{new}" everywhere in {name} and save the file.'
    return _changed(goal, name, text, text.replace(old, new), old=old, new=new)


def _convert_make(random: Random) -> Wanted:
    name, lines, case = _file(random), _text(random, 2), random.choice(list(_CASES))
    letters = "capital letters" if case == "To Uppercase" else "small letters"
    goal = f"Turn the whole text of {name} into {letters} and save the file."
    return _changed(goal, name, _joined(lines), _CASES[case](_joined(lines)), case=case)


def _save_as_make(random: Random) -> Wanted:
    name, new, text = _file(random), _file(random), _joined(_text(random, 3))
    if name == new:
        raise UnfitChoice
    goal = f"Save a copy of {name}, which is open, under the name {new} in the same folder."
    return _changed(goal, name, text, text, new=new) | {"after": {name: text, new: text}}


def _copy_make(random: Random) -> Wanted:
    one, two = _file(random), _file(random)
    if one == two:
        raise UnfitChoice
    first, second = _joined(_text(random, 2)), _joined(_text(random, 2))
    goal = f"Copy the whole text of {one} to the end of {two}, and save {two}. Both are open."
    return {
        "goal": goal,
        "open": [one, two],
        "files": {one: first, two: second},
        "after": {one: first, two: second + first},
    }


def _read_line_make(random: Random) -> Wanted:
    name, lines = _file(random), _text(random, 8)
    at = random.randint(2, 8)
    number = lines[at - 1].rpartition(" ")[2]
    goal = f"Which number stands at the end of line {at} of {name}? Answer with the number alone."
    return _changed(goal, name, _joined(lines), _joined(lines), line=at) | {"answer": number}


def _saved() -> Script:
    yield key("ctrl+s")
    yield done()


def _write_play(page: ObservedPage, wanted: Wanted) -> Script:
    del page
    yield key("ctrl+End")
    yield typed(wanted["text"])
    yield from _saved()


def _delete_line_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield key("ctrl+Home")
    for _ in range(wanted["line"]):
        page = yield key("Down")
    page = yield open_menu(page, "Edit")
    page = yield click(page, "menuitem", "Delete Line")
    yield from _saved()


def _replace_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield open_menu(page, "Search")
    page = yield click(page, "menuitem", "Find and Replace...")
    page = yield typed(wanted["old"])
    dialog = page.find("dialog", "Find and Replace")
    replacement = [node for node in page.under(dialog) if node.role == "textbox"][1]
    page = yield call("computer", action="click", element=replacement.id)
    page = yield typed(wanted["new"])
    page = yield click(page, "checkbox", "Replace all in:")
    page = yield click(page, "button", "Replace All")
    page = yield click(page, "button", "Close")
    yield from _saved()


def _convert_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield key("ctrl+a")
    page = yield open_menu(page, "Edit")
    page = yield click(page, "menu", "Convert")
    page = yield click(page, "menuitem", wanted["case"])
    yield from _saved()


def _save_as_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield open_menu(page, "File")
    page = yield click(page, "menuitem", "Save As...")
    page = yield key("ctrl+a")
    page = yield typed(wanted["new"])
    page = yield click(page, "button", "Save")
    yield done()


def _copy_play(page: ObservedPage, wanted: Wanted) -> Script:
    one, two = wanted["open"]
    page = yield click(page, "tab", one)
    page = yield key("ctrl+a")
    page = yield key("ctrl+c")
    page = yield click(page, "tab", two)
    page = yield key("ctrl+End")
    page = yield key("ctrl+v")
    yield from _saved()


def _read_line_play(page: ObservedPage, wanted: Wanted) -> Script:
    text = next(node for node in page.nodes if node.role == "textbox").value()
    yield done(text.split("\n")[wanted["line"] - 1].rpartition(" ")[2])


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    return [["mousepad", *(f"/home/user/{FOLDER}/{name}" for name in wanted["open"])]]


def _template(
    name: str,
    level: int,
    make: Callable[[Random], Wanted],
    play: Any,
    check: Check = documents_are_as_wanted,
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="editor",
        level=level,
        make=make,
        play=play,
        check=check,
        programs=_programs,
        files=documents,
    )


EDITOR: tuple[DesktopTemplate, ...] = (
    _template("write_line", 1, _write_make, _write_play),
    _template("append_line", 1, _append_make, _write_play),
    _template("delete_line", 2, _delete_line_make, _delete_line_play),
    _template("replace_word", 3, _replace_make, _replace_play),
    _template("change_case", 2, _convert_make, _convert_play),
    _template("save_copy", 2, _save_as_make, _save_as_play),
    _template("copy_text", 3, _copy_make, _copy_play),
    _template("read_line", 1, _read_line_make, _read_line_play, said_the_answer),
)
"""Kinds of tasks in a text editor."""
