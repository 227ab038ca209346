"""Tasks in a file manager, Thunar: judged by the files that are there then."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, done, key, typed
from agentrl_envs.gui.tasks.state import FOLDER, documents, documents_are_as_wanted
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import WORDS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script


def _names(random: Random, count: int) -> list[str]:
    return [f"{word}-{random.randint(10, 99)}.txt" for word in random.sample(WORDS, count)]


def _files(random: Random, count: int) -> dict[str, str]:
    return {name: f"{random.randint(10**6, 10**7)}\n" for name in _names(random, count)}


def _task(goal: str, files: dict[str, str], after: dict[str, str], **more: Any) -> Wanted:
    return {"goal": f"In the file manager: {goal}", "files": files, "after": after, **more}


def _rename_make(random: Random) -> Wanted:
    files = _files(random, 4)
    old = random.choice(list(files))
    new = f"{random.choice(WORDS)}-{random.randint(100, 999)}.txt"
    after = {new if name == old else name: text for name, text in files.items()}
    return _task(f"rename the file {old} to {new}.", files, after, name=old, new=new)


def _folder_make(random: Random) -> Wanted:
    files = _files(random, 3)
    new = f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    return _task(f"make a new folder {new}.", files, {**files, f"{new}/": ""}, new=new)


def _delete_make(random: Random) -> Wanted:
    files = _files(random, 4)
    name = random.choice(list(files))
    after = {other: text for other, text in files.items() if other != name}
    return _task(f"delete the file {name} for good, and no other.", files, after, name=name)


def _into_folder(random: Random, *, keeps: bool) -> Wanted:
    files = _files(random, 3)
    name, folder = random.choice(list(files)), f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    files |= {f"{folder}/": ""}
    after = {other: text for other, text in files.items() if keeps or other != name}
    after |= {f"{folder}/{name}": files[name]}
    verb = "copy" if keeps else "move"
    goal = f"{verb} the file {name} into the folder {folder}."
    keys = "ctrl+c" if keeps else "ctrl+x"
    return _task(goal, files, after, name=name, folder=folder, keys=keys)


def _move_make(random: Random) -> Wanted:
    return _into_folder(random, keeps=False)


def _copy_make(random: Random) -> Wanted:
    return _into_folder(random, keeps=True)


def _rename_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield key("F2")
    yield from _named(page, wanted["new"], "Rename")


def _folder_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield key("ctrl+shift+n")
    yield from _named(page, wanted["new"], "Create")


def _named(page: ObservedPage, name: str, button: str) -> Script:
    page = yield key("ctrl+a")
    page = yield typed(name)
    page = yield click(page, "button", button)
    yield done()


def _delete_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield key("shift+Delete")
    page = yield click(page, "button", "Delete")
    yield done()


def _into_folder_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "cell", wanted["name"])
    page = yield key(wanted["keys"])
    folder = page.id("cell", wanted["folder"])
    page = yield call("computer", action="double_click", element=folder)
    page = yield key("ctrl+v")
    yield done()


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    return [["thunar", f"/home/user/{FOLDER}"]]


def _template(
    name: str, level: int, make: Callable[[Random], Wanted], play: Any
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="files",
        level=level,
        make=make,
        play=play,
        check=documents_are_as_wanted,
        programs=_programs,
        files=documents,
        # It opens files with whatever there is for them.
        runs_code=True,
    )


FILER: tuple[DesktopTemplate, ...] = (
    _template("rename", 1, _rename_make, _rename_play),
    _template("new_folder", 1, _folder_make, _folder_play),
    _template("delete_file", 2, _delete_make, _delete_play),
    _template("move_file", 2, _move_make, _into_folder_play),
    _template("copy_file", 2, _copy_make, _into_folder_play),
)
"""Kinds of tasks in a file manager."""
