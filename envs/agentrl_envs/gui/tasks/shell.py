"""Tasks in terminals, LXTerminal with an accessibility tree and xterm without: code runs there."""

from collections.abc import Sequence
from functools import partial
from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.editor import draw_sentence
from agentrl_envs.gui.tasks.moves import finish, type_text
from agentrl_envs.gui.tasks.state import (
    FOLDER,
    are_documents_right,
    documents,
    is_answered,
)
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import WORDS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script


def _draw_files(random: Random, count: int) -> dict[str, str]:
    names = [f"{word}-{random.randint(10, 99)}.txt" for word in random.sample(WORDS, count)]
    return {
        name: "".join(f"{draw_sentence(random)}\n" for _ in range(random.randint(3, 30)))
        for name in names
    }


def _make_count(random: Random) -> Wanted:
    files = _draw_files(random, 3)
    name = random.choice(list(files))
    goal = f"How many lines has the file {name}? Use the terminal. Answer with the number alone."
    answer = f"{files[name].count(chr(10))}"
    return {"goal": goal, "files": files, "answer": answer, "type": f"wc -l < {name}\n"}


def _make_find(random: Random) -> Wanted:
    files = _draw_files(random, 4)
    name, mark = random.choice(list(files)), f"{random.choice(WORDS)}{random.randint(1000, 9999)}"
    files[name] += f"{mark}\n"
    goal = (
        f'Which file contains "{mark}"? Use the terminal. Answer with the name of the file alone.'
    )
    return {"goal": goal, "files": files, "answer": name, "type": f"grep -l {mark} *\n"}


def _make_remove(random: Random) -> Wanted:
    files = _draw_files(random, 4)
    name = random.choice(list(files))
    after = {other: text for other, text in files.items() if other != name}
    goal = f"Delete the file {name} with the terminal, and no other."
    return {"goal": goal, "files": files, "after": after, "type": f"rm {name}\n"}


def _make_folder(random: Random) -> Wanted:
    files = _draw_files(random, 2)
    name, folder = random.choice(list(files)), f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    after = {other: text for other, text in files.items() if other != name}
    after |= {f"{folder}/": "", f"{folder}/{name}": files[name]}
    goal = f"Make a folder {folder} in the terminal, and move the file {name} into it."
    return {
        "goal": goal, "files": files, "after": after,
        "type": f"mkdir {folder} && mv {name} {folder}\n",
    }  # fmt: skip


def _make_xterm(random: Random) -> Wanted:
    line, name = f"{random.choice(WORDS)} {random.randint(1000, 9999)}", "out.txt"
    goal = f'Write the line "{line}" into a new file {name} with the terminal.'
    return {"goal": goal, "files": {}, "after": {name: line}, "type": f"echo '{line}' > {name}\n"}


def _play_answer(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield type_text(wanted["type"])
    lines = page.find("terminal", "Terminal").value().split("\n")
    yield finish(lines[-2])


def _play_do(page: ObservedPage, wanted: Wanted) -> Script:
    yield type_text(wanted["type"])
    yield finish()


def _xterm(wanted: Wanted) -> Sequence[Sequence[str]]:
    shell = f"cd /home/user/{FOLDER} && exec bash --norc"
    return [["xterm", "-uc", "-fa", "DejaVu Sans Mono", "-fs", "11", "-e", "sh", "-c", shell]]


_template = partial(
    DesktopTemplate,
    program="terminal",
    programs=lambda wanted: [["lxterminal", f"--working-directory=/home/user/{FOLDER}"]],
    files=documents,
    runs_code=True,
)
SHELL: tuple[DesktopTemplate, ...] = (
    _template("count_lines", 2, _make_count, _play_answer, is_answered),
    _template("find_file", 2, _make_find, _play_answer, is_answered),
    _template("remove_file", 1, _make_remove, _play_do, are_documents_right),
    _template("move_into_folder", 2, _make_folder, _play_do, are_documents_right),
    _template("xterm_write", 1, _make_xterm, _play_do, are_documents_right, programs=_xterm),
)
"""Kinds of tasks in a terminal."""
