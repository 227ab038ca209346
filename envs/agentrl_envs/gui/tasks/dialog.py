"""Tasks in dialogs as scripts show them, with YAD: judged by what the dialog wrote."""

import shlex
from collections.abc import Sequence
from functools import partial
from random import Random

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.moves import click, finish, type_text
from agentrl_envs.gui.tasks.state import FOLDER, are_documents_right, documents
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import FIRST_NAMES, LAST_NAMES, OPTIONS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_WRITTEN = "settings.txt"


def _make_options(random: Random) -> Wanted:
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


def _make_secret(random: Random) -> Wanted:
    code = f"{random.randint(100_000, 999_999)}"
    return {
        "goal": f"Enter the code {code} into the dialog that asks for it, and press OK.",
        "files": {}, "after": {_WRITTEN: code}, "name": code,
        "yad": ["--entry", "--title=Code", "--text=The code, please", "--width=300"],
    }  # fmt: skip


def _play_options(page: ObservedPage, wanted: Wanted) -> Script:
    box = next(node for node in page.nodes if node.role == "textbox")
    page = yield call("computer", action="click", element=box.id)
    page = yield type_text(wanted["name"])
    page = yield click(page, "checkbox", "Remember me")
    page = yield click(page, "combobox", wanted["label"])
    page = yield click(page, "menuitem", wanted["choice"])
    page = yield click(page, "button", "OK")
    yield finish()


def _play_secret(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield type_text(wanted["name"])
    page = yield click(page, "button", "OK")
    yield finish()


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    command = shlex.join(["yad", *wanted["yad"]])
    return [["sh", "-c", f"exec {command} > /home/user/{FOLDER}/{_WRITTEN}"]]


_template = partial(
    DesktopTemplate,
    program="dialog",
    check=are_documents_right,
    programs=_programs,
    files=documents,
)
DIALOG: tuple[DesktopTemplate, ...] = (
    _template("set_options", 2, _make_options, _play_options),
    _template("enter_code", 1, _make_secret, _play_secret),
)
"""Kinds of tasks in dialogs."""
