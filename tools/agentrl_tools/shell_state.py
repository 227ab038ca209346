"""State with which a fresh bash continues where the last one ended.

A live bash cannot be forked with its session, so every command gets a bash of its own. What lives
on between them is text: a script that one shell writes at its end and the next evaluates first.
"""

from functools import cache
from importlib.resources import files
from typing import Final

STATE_FILE = ".agentrl-shell"
"""In the session's directory, from the end of one command to the beginning of the next."""
STATE_KIB_MAX = 256

BASH: Final = (
    "bash",
    "--noprofile",
    "--norc",
    "-c",
    # One line, so that bash counts the command's lines from 1. The command is evaluated here and
    # not by the script, and the braces hide the end from `set -x`.
    "IFS= builtin read -r -d '' __agentrl_script; builtin eval \"$__agentrl_script\"; "
    'builtin eval "${__agentrl_first-}$__agentrl_command"; '
    '{ __agentrl_end "$?"; } >/dev/null 2>&1',
    "bash",
)
"""A bash that does what `script` on its standard input says."""


def script(command: str, *, state: bytes, number: int) -> bytes:
    """Return the input of bash that runs `command` after `state`, which is empty at first.

    `number` marks the state that this command will leave. The command must hold no NUL.
    """
    lines = (
        _machinery(),
        f"__agentrl_mark={_mark(number)} __agentrl_kib={STATE_KIB_MAX}".encode(),
        b"builtin eval " + _quote(state) + b" >/dev/null 2>&1",
        b"__agentrl_command=" + _quote(command.encode()),
        b"__agentrl_begin",
    )
    return b"\n".join(lines)


def is_whole(state: bytes, number: int) -> bool:
    """Return whether `state` is what command `number` left, to its end."""
    return state.endswith(f"\n# {_mark(number)}\n".encode())


def is_cut(state: bytes) -> bool:
    """Return whether a state that is not whole was too large to be one."""
    return len(state) >= STATE_KIB_MAX * 2**10


def _mark(number: int) -> str:
    return f"agentrl-{number}"


@cache
def _machinery() -> bytes:
    return files("agentrl_tools").joinpath("shell_state.sh").read_bytes()


def _quote(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
