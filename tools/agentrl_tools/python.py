"""A Python interpreter as a tool: the model writes cells, names live on from one to the next."""

from typing import Self

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Sandbox
from agentrl.tool import ToolContext, tool
from agentrl_sandbox import open_session

NO_OUTPUT = "(no output)"
TRUNCATED = "(output was cut)"


class Python:
    """One sandboxed session per trajectory, opened under the sandbox settings in force.

    What the code does, errors and exceeded limits included, is text for the model. A sandbox that
    is gone raises `SandboxError`: that is nobody's answer.
    """

    def __init__(self) -> None:
        self._session: Sandbox | None = None

    async def open(self, context: ToolContext) -> None:
        """Open the session."""
        self._session = await open_session()

    async def fork(self) -> Self:
        """Return a copy with a forked session; `ForkUnsupported` while threads run in it."""
        copy = type(self)()
        copy._session = await self._opened().fork()
        return copy

    async def close(self) -> None:
        """Close the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @tool
    async def python(self, code: str) -> str:
        """Run Python code in a session whose state persists: names are kept between calls. Returns
        what the code printed and the value of its last expression.

        Args:
            code: The Python code to run.
        """
        return render(await self._opened().exec(code))

    def _opened(self) -> Sandbox:
        if self._session is None:
            raise SandboxError("the python tool has no session; open it, and use it before close")
        return self._session


def render(result: ExecResult) -> str:
    """Return a result as the model reads it: output, value, error; nothing but what is there."""
    parts = [result.stdout, result.stderr, result.value, TRUNCATED if result.truncated else None]
    if not result.ok:
        label = "" if result.status == "error" else f"{result.status}: "
        parts.append(f"{label}{result.error}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or NO_OUTPUT
