"""A Python interpreter as a tool: the model writes cells, names live on from one to the next."""

from typing import Self

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Sandbox
from agentrl.tool import ToolContext, tool
from agentrl_sandbox import open_session

NO_OUTPUT = "(no output)"
TRUNCATED = "(output was cut)"


class Python:
    """One sandboxed session per trajectory, under the sandbox settings in force at the first call.

    A trajectory that never runs code costs no session. What the code does, errors and exceeded
    limits included, is text for the model. A sandbox that is gone raises `SandboxError`: that is
    nobody's answer.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._session: Sandbox | None = None

    @property
    def session(self) -> Sandbox | None:
        """The session, or None while no code has run; for whoever grades what was left in it."""
        return self._session

    async def open(self, context: ToolContext) -> None:
        """Take calls from here on."""
        del context
        self._is_open = True

    async def fork(self) -> Self:
        """Return a copy with a forked session; `ForkUnsupported` while threads run in it."""
        copy = type(self)()
        copy._is_open = self._is_open
        if self._session is not None:
            copy._session = await self._session.fork()
        return copy

    async def close(self) -> None:
        """Close the session. Idempotent."""
        self._is_open = False
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
        if not self._is_open:
            raise SandboxError("the python tool is not open; open it, and use it before close")
        if self._session is None:
            self._session = await open_session()
        return render(await self._session.exec(code))


def render(result: ExecResult) -> str:
    """Return a result as the model reads it: output, value, error; nothing but what is there."""
    parts = [result.stdout, result.stderr, result.value, TRUNCATED if result.truncated else None]
    if not result.ok:
        label = "" if result.status == "error" else f"{result.status}: "
        parts.append(f"{label}{result.error}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or NO_OUTPUT
