"""A Python interpreter as a tool: the model writes cells, names live on from one to the next."""

from agentrl.message import Content
from agentrl.sandbox import ExecResult
from agentrl.tool import tool
from agentrl_tools.session_tool import SessionTool

NO_OUTPUT = "(no output)"
TRUNCATED = "(output was cut)"


class Python(SessionTool):
    """Runs cells in the session's interpreter.

    What the code does, errors and exceeded limits included, is text for the model. A sandbox that
    is gone raises `SandboxError`: that is nobody's answer.
    """

    def __init__(self, *, figures: bool = False) -> None:
        """Show the model what it draws with matplotlib when `figures` is set.

        Set it for a model whose chat template shows images; any other is told how many figures it
        drew.
        """
        super().__init__()
        self._figures = figures

    @tool
    async def python(self, code: str) -> Content:
        """Run Python code in a session whose state persists: names are kept between calls. Returns
        what the code printed and the value of its last expression.

        Args:
            code: The Python code to run.
        """
        result = await (await self.session()).exec(code)
        text = render(result)
        if not result.images:
            return text
        if self._figures:
            return (text, *result.images)
        drawn = f"(figures drawn but not shown: {len(result.images)})"
        return drawn if text == NO_OUTPUT else f"{text}\n{drawn}"


def render(result: ExecResult) -> str:
    """Return a result as the model reads it: output, value, error; nothing but what is there."""
    parts = [result.stdout, result.stderr, result.value, TRUNCATED if result.truncated else None]
    if not result.ok:
        label = "" if result.status == "error" else f"{result.status}: "
        parts.append(f"{label}{result.error}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or NO_OUTPUT
