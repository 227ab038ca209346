"""Tasks in dialogs as scripts show them, with YAD: judged by what the dialog wrote."""

import shlex
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, done, typed
from agentrl_envs.gui.tasks.state import FOLDER, documents, documents_are_as_wanted
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import FIRST_NAMES, LAST_NAMES, OPTIONS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_WRITTEN = "settings.txt"


def _options_make(random: Random) -> Wanted:
    name = f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
    label = random.choice(list(OPTIONS))
    old, new = random.sample(OPTIONS[label], 2)
    listed = "!".join(f"^{one}" if one == old else one for one in OPTIONS[label])
    goal = (
        f'In the dialog, set "Name" to "{name}", switch "Remember me" on, choose "{new}" for '
        f'"{label}", and press OK.'
    )
    return {
        "goal": goal, "files": {}, "after": {_WRITTEN: f"{name}|TRUE|{new}|"}, "name": name,
        "label": old, "choice": new,
        "yad": ["--form", "--title=Settings", "--width=360", "--field=Name",
                "--field=Remember me:CHK", f"--field={label}:CB", "", "FALSE", listed],
    }  # fmt: skip


def _secret_make(random: Random) -> Wanted:
    code = f"{random.randint(100_000, 999_999)}"
    return {
        "goal": f"Enter the code {code} into the dialog that asks for it, and press OK.",
        "files": {}, "after": {_WRITTEN: code}, "name": code,
        "yad": ["--entry", "--title=Code", "--text=The code, please", "--width=300"],
    }  # fmt: skip


def _options_play(page: ObservedPage, wanted: Wanted) -> Script:
    box = next(node for node in page.nodes if node.role == "textbox")
    page = yield call("computer", action="click", element=box.id)
    page = yield typed(wanted["name"])
    page = yield click(page, "checkbox", "Remember me")
    page = yield click(page, "combobox", wanted["label"])
    page = yield click(page, "menuitem", wanted["choice"])
    page = yield click(page, "button", "OK")
    yield done()


def _secret_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield typed(wanted["name"])
    page = yield click(page, "button", "OK")
    yield done()


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    command = shlex.join(["yad", *wanted["yad"]])
    return [["sh", "-c", f"exec {command} > /home/user/{FOLDER}/{_WRITTEN}"]]


def _template(
    name: str, level: int, make: Callable[[Random], Wanted], play: Any
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="dialog",
        level=level,
        make=make,
        play=play,
        check=documents_are_as_wanted,
        programs=_programs,
        files=documents,
    )


DIALOG: tuple[DesktopTemplate, ...] = (
    _template("set_options", 2, _options_make, _options_play),
    _template("enter_code", 1, _secret_make, _secret_play),
)
"""Kinds of tasks in dialogs."""
