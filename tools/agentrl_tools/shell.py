"""A shell as a tool: every command goes on where the last one ended.

A live bash cannot be forked with its session, so every command gets a bash of its own. What lives
on between them is text: a script that one shell writes at its end and the next evaluates first.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from agentrl.errors import SandboxError
from agentrl.sandbox import RunResult, Sandbox
from agentrl.tool import tool
from agentrl_tools.python import NO_OUTPUT, TRUNCATED
from agentrl_tools.session_tool import SessionTool, check_text

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
"""A bash that does what `build_script` on its standard input says."""
UNCHANGED = "(the shell's state is unchanged by this command)"
TOO_LARGE = (
    f"(the shell's variables and functions exceed {STATE_KIB_MAX} KiB, so its state is "
    "unchanged by this command; keep large data in files)"
)


class Shell(SessionTool):
    """Runs commands in bash, in the session's directory and under the session's limits.

    From one command to the next live on: working directory and directory stack, variables,
    functions, aliases, options, umask and `$?`. Traps, redirections, limits and the job table end
    with the command. A command that is killed, or replaces its shell, leaves the shell as it was.
    """

    _state = b""
    _commands = 0

    @tool
    async def shell(self, command: str) -> str:
        """Run a command in bash. The shell's state persists: directory, variables, functions,
        aliases and options are kept between calls. Returns what the command printed and its exit
        code, when that is not 0. Standard input is empty.

        Args:
            command: The command, of one line or many.
        """
        check_text("command", command)
        session = await self.session()
        self._commands += 1
        stdin = build_script(command, state=self._state, number=self._commands)
        result = await session.run(BASH, stdin=stdin)
        if result.status == "error":
            raise SandboxError(f"the shell tool cannot start bash: {result.error}")
        return render(result, await self._keep(session, result))

    async def _keep(self, session: Sandbox, result: RunResult) -> str | None:
        """Take in the state that a command left; return what to say when there is none."""
        if result.status != "ok":
            return UNCHANGED
        try:
            state = await session.read(STATE_FILE)
        except OSError:
            return UNCHANGED
        if len(state) >= STATE_KIB_MAX * 2**10:  # also of a command that wrote the file itself
            return TOO_LARGE
        if not state.endswith(f"\n# agentrl-{self._commands}\n".encode()):
            return UNCHANGED
        self._state = state
        return None


def render(result: RunResult, note: str | None = None) -> str:
    """Return a result as the model reads it: output, how it ended unless well, and a note."""
    parts = [result.stdout, result.stderr, TRUNCATED if result.truncated else None]
    if result.status != "ok":
        parts.append(f"{result.status}: {result.error}")
    elif result.exit_code:
        parts.append(f"(exit code {result.exit_code})")
    return "\n".join(part.rstrip("\n") for part in (*parts, note) if part) or NO_OUTPUT


def build_script(command: str, *, state: bytes, number: int) -> bytes:
    """Return the input of bash that runs `command` after `state`, which is empty at first.

    `number` marks the state that this command will leave. The command must hold no NUL.
    """
    lines = (
        _load_machinery(),
        f"__agentrl_mark=agentrl-{number} __agentrl_kib={STATE_KIB_MAX}".encode(),
        b"builtin eval " + _quote(state) + b" >/dev/null 2>&1",
        b"__agentrl_command=" + _quote(command.encode()),
        b"__agentrl_begin",
    )
    return b"\n".join(lines)


@cache
def _load_machinery() -> bytes:
    return files("agentrl_tools").joinpath("shell_state.sh").read_bytes()


def _quote(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
