"""The oracle: a task's own solution, as actions of an agent."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from agentrl.env import Action, call, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl_envs.harbor.task_folder import HarborTask
from agentrl_sandbox.provider.content import walk_files

FOLDER = "/solution"
DONE = "The task is done."
_SELF_REFERENCES = (FOLDER, "$0", "${0", "BASH_SOURCE")
_INTERPRETERS = ("#!/bin/bash", "#!/usr/bin/env bash", "#!/usr/bin/bash")


def play_oracle(task: HarborTask, seen: Sequence[Message], *, timeout_s: float) -> Action:
    """Return the next action of a player that runs the solution.

    A solution of one script is run as a command. Any other is written to `/solution`, file by file,
    and run there. Raises `ConfigError` for a task without one, and for a file that is no text.
    """
    actions = plan_oracle(task, timeout_s=timeout_s)
    answered = sum(message.role == "tool" for message in seen)
    return actions[answered] if answered < len(actions) else say(DONE)


def plan_oracle(task: HarborTask, *, timeout_s: float) -> tuple[Action, ...]:
    """Return the calls that solve a task, in order."""
    if not task.has_solution:
        raise ConfigError(
            f"{task.solution / 'solve.sh'} is missing: the task has no oracle to play"
        )
    script = _read(task.solution / "solve.sh")
    files = [path for path in walk_files(task.solution) if path.is_file()]
    exports = {"DEBIAN_FRONTEND": "noninteractive", **task.config.solution.env}
    head = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    if len(files) == 1 and not any(word in script for word in _SELF_REFERENCES):
        first, _, rest = script.partition("\n")
        if first.startswith(_INTERPRETERS):
            flags = first.partition("bash")[2].strip()
            options = f"set {flags}\n" if flags else ""
            head = head if task.config.solution.env else ""
            return (call("bash", command=f"{head}{options}{rest.strip()}", timeout_s=timeout_s),)
    writes = [
        call(
            "write_file",
            path=f"{FOLDER}/{path.relative_to(task.solution).as_posix()}",
            content=_read(path),
        )
        for path in files
    ]
    run = f"{head}cd {FOLDER} && chmod -R a+rx ./* && cd - >/dev/null && {FOLDER}/solve.sh"
    return (*writes, call("bash", command=run, timeout_s=timeout_s))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no text, and the oracle writes its files with a tool; encode it"
        ) from error
