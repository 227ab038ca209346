"""Tasks in terminals, LXTerminal with an accessibility tree and xterm without: code runs there."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.tasks.editor import sentence
from agentrl_envs.gui.tasks.moves import done, typed
from agentrl_envs.gui.tasks.state import (
    FOLDER,
    documents,
    documents_are_as_wanted,
    said_the_answer,
)
from agentrl_envs.gui.tasks.template import Check, DesktopTemplate
from agentrl_envs.gui.tasks.words import WORDS
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script


def _files(random: Random, count: int) -> dict[str, str]:
    names = [f"{word}-{random.randint(10, 99)}.txt" for word in random.sample(WORDS, count)]
    return {
        name: "".join(f"{sentence(random)}\n" for _ in range(random.randint(3, 30)))
        for name in names
    }


def _count_make(random: Random) -> Wanted:
    files = _files(random, 3)
    name = random.choice(list(files))
    goal = f"How many lines has the file {name}? Use the terminal. Answer with the number alone."
    answer = f"{files[name].count(chr(10))}"
    return {"goal": goal, "files": files, "answer": answer, "type": f"wc -l < {name}\n"}


def _find_make(random: Random) -> Wanted:
    files = _files(random, 4)
    name, mark = random.choice(list(files)), f"{random.choice(WORDS)}{random.randint(1000, 9999)}"
    files[name] += f"{mark}\n"
    goal = (
        f'Which file contains "{mark}"? Use the terminal. Answer with the name of the file alone.'
    )
    return {"goal": goal, "files": files, "answer": name, "type": f"grep -l {mark} *\n"}


def _remove_make(random: Random) -> Wanted:
    files = _files(random, 4)
    name = random.choice(list(files))
    after = {other: text for other, text in files.items() if other != name}
    goal = f"Delete the file {name} with the terminal, and no other."
    return {"goal": goal, "files": files, "after": after, "type": f"rm {name}\n"}


def _folder_make(random: Random) -> Wanted:
    files = _files(random, 2)
    name, folder = random.choice(list(files)), f"{random.choice(WORDS)}-{random.randint(100, 999)}"
    after = {other: text for other, text in files.items() if other != name}
    after |= {f"{folder}/": "", f"{folder}/{name}": files[name]}
    goal = f"Make a folder {folder} in the terminal, and move the file {name} into it."
    return {
        "goal": goal, "files": files, "after": after,
        "type": f"mkdir {folder} && mv {name} {folder}\n",
    }  # fmt: skip


def _xterm_make(random: Random) -> Wanted:
    line, name = f"{random.choice(WORDS)} {random.randint(1000, 9999)}", "out.txt"
    goal = f'Write the line "{line}" into a new file {name} with the terminal.'
    return {"goal": goal, "files": {}, "after": {name: line}, "type": f"echo '{line}' > {name}\n"}


def _answer_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield typed(wanted["type"])
    lines = page.find("terminal", "Terminal").value().split("\n")
    yield done(lines[-2])


def _do_play(page: ObservedPage, wanted: Wanted) -> Script:
    del page
    yield typed(wanted["type"])
    yield done()


def _terminal(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    return [["lxterminal", f"--working-directory=/home/user/{FOLDER}"]]


def _xterm(wanted: Wanted) -> Sequence[Sequence[str]]:
    del wanted
    shell = f"cd /home/user/{FOLDER} && exec bash --norc"
    return [["xterm", "-uc", "-fa", "DejaVu Sans Mono", "-fs", "11", "-e", "sh", "-c", shell]]


def _template(
    name: str,
    level: int,
    make: Callable[[Random], Wanted],
    play: Any,
    check: Check,
    programs: Callable[[Wanted], Sequence[Sequence[str]]] = _terminal,
) -> DesktopTemplate:
    return DesktopTemplate(
        name=name,
        program="terminal",
        level=level,
        make=make,
        play=play,
        check=check,
        programs=programs,
        files=documents,
        runs_code=True,
    )


SHELL: tuple[DesktopTemplate, ...] = (
    _template("count_lines", 2, _count_make, _answer_play, said_the_answer),
    _template("find_file", 2, _find_make, _answer_play, said_the_answer),
    _template("remove_file", 1, _remove_make, _do_play, documents_are_as_wanted),
    _template("move_into_folder", 2, _folder_make, _do_play, documents_are_as_wanted),
    _template("xterm_write", 1, _xterm_make, _do_play, documents_are_as_wanted, _xterm),
)
"""Kinds of tasks in a terminal."""
