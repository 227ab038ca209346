"""Tasks in a file manager, Thunar: judged by the files that are there then."""

from functools import partial
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, finish, press, type_text
from agentrl_envs.gui.tasks.state import FOLDER, are_documents_right, documents
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import WORDS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script


def _draw_files(random: Random, count: int) -> dict[str, str]:
    names = [f"{word}-{random.randint(10, 99)}.txt" for word in random.sample(WORDS, count)]
    return {name: f"{random.randint(10**6, 10**7)}\n" for name in names}


def _task(goal: str, files: dict[str, str], after: dict[str, str], **more: Any) -> Wanted:
    return {"goal": f"In the file manager: {goal}", "files": files, "after": after, **more}


def _make_rename(random: Random) -> Wanted:
    files = _draw_files(random, 4)
    old = random.choice(list(files))
    new = f"{random.choice(WORDS)}-{random.randint(100, 999)}.txt"
    after = {new if name == old else name: text for name, text in files.items()}
    return _task(f"rename the file {old} to {new}.", files, after, name=old, new=new)


def _make_folder(random: Random) -> Wanted:
    files = _draw_files(random, 3)
    new = f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    return _task(f"make a new folder {new}.", files, {**files, f"{new}/": ""}, new=new)


def _make_delete(random: Random) -> Wanted:
    files = _draw_files(random, 4)
    name = random.choice(list(files))
    after = {other: text for other, text in files.items() if other != name}
    return _task(f"delete the file {name} for good, and no other.", files, after, name=name)


def _make_into_folder(random: Random, *, keeps: bool) -> Wanted:
    files = _draw_files(random, 3)
    name, folder = random.choice(list(files)), f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    files |= {f"{folder}/": ""}
    after = {other: text for other, text in files.items() if keeps or other != name}
    after |= {f"{folder}/{name}": files[name]}
    verb = "copy" if keeps else "move"
    goal = f"{verb} the file {name} into the folder {folder}."
    keys = "ctrl+c" if keeps else "ctrl+x"
    return _task(goal, files, after, name=name, folder=folder, keys=keys)


def _play_rename(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield press("F2")
    yield from _name_entry(page, wanted["new"], "Rename")


def _play_folder(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield press("ctrl+shift+n")
    yield from _name_entry(page, wanted["new"], "Create")


def _name_entry(page: ObservedPage, name: str, button: str) -> Script:
    page = yield press("ctrl+a")
    page = yield type_text(name)
    page = yield click(page, "button", button)
    yield finish()


def _play_delete(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield press("shift+Delete")
    page = yield click(page, "button", "Delete")
    yield finish()


def _play_into_folder(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield press(wanted["keys"])
    folder = page.id("cell", wanted["folder"])
    page = yield call("computer", action="double_click", element=folder)
    page = yield press("ctrl+v")
    yield finish()


_template = partial(
    DesktopTemplate,
    program="files",
    check=are_documents_right,
    programs=lambda wanted: [["thunar", f"/home/user/{FOLDER}"]],
    files=documents,
    # It opens files with whatever there is for them.
    runs_code=True,
)
FILER: tuple[DesktopTemplate, ...] = (
    _template("rename", 1, _make_rename, _play_rename),
    _template("new_folder", 1, _make_folder, _play_folder),
    _template("delete_file", 2, _make_delete, _play_delete),
    _template("move_file", 2, partial(_make_into_folder, keeps=False), _play_into_folder),
    _template("copy_file", 2, partial(_make_into_folder, keeps=True), _play_into_folder),
)
"""Kinds of tasks in a file manager."""
