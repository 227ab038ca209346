"""A shell as a tool: every command goes on where the last one ended."""

from agentrl.errors import SandboxError
from agentrl.sandbox import RunResult, Sandbox
from agentrl.tool import tool
from agentrl_tools import shell_state
from agentrl_tools.python import NO_OUTPUT, TRUNCATED
from agentrl_tools.session_tool import SessionTool, check_text

UNCHANGED = "(the shell's state is unchanged by this command)"
TOO_LARGE = (
    f"(the shell's variables and functions exceed {shell_state.STATE_KIB_MAX} KiB, so its state is "
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
        stdin = shell_state.script(command, state=self._state, number=self._commands)
        result = await session.run(shell_state.BASH, stdin=stdin)
        if result.status == "error":
            raise SandboxError(f"the shell tool cannot start bash: {result.error}")
        return render(result, await self._keep(session, result))

    async def _keep(self, session: Sandbox, result: RunResult) -> str | None:
        """Take in the state that a command left; return what to say when there is none."""
        if result.status != "ok":
            return UNCHANGED
        try:
            state = await session.read(shell_state.STATE_FILE)
        except OSError:
            return UNCHANGED
        if not shell_state.is_whole(state, self._commands):
            return TOO_LARGE if shell_state.is_cut(state) else UNCHANGED
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
