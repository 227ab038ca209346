"""The Python tool: what the model is told, and that state lives as long as the trajectory."""

import functools

import pytest

from agentrl.authoring.toolset import ToolSet, schemas_of
from agentrl.errors import SandboxError
from agentrl.message import Content, Image, ToolCall
from agentrl.sandbox import ExecResult, Sandbox, SandboxSettings, using_sandbox
from agentrl.testing.sandbox import ScriptedSandbox
from agentrl.testing.tool import check_tool
from agentrl.tool import ToolContext
from agentrl_tools import session_tool
from agentrl_tools.python import NO_OUTPUT, Python, render

BARE = SandboxSettings(backend="process", allow_unisolated=True)
CONTEXT = ToolContext(task_id="t", sample=0, seed=0)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(status="ok", value="1218"), "1218"),
        (ExecResult(status="ok"), NO_OUTPUT),
        (ExecResult(status="ok", stdout="a\nb\n"), "a\nb"),
        (ExecResult(status="ok", stdout="a\n", value="3"), "a\n3"),
        (ExecResult(status="ok", stdout="a\n", stderr="w\n", value="3"), "a\nw\n3"),
        (ExecResult(status="error", stdout="a\n", error="NameError: x"), "a\nNameError: x"),
        (ExecResult(status="timeout", error="stopped after 2 s"), "timeout: stopped after 2 s"),
        (ExecResult(status="ok", stdout="a", truncated=True), "a\n(output was cut)"),
    ],
)
def test_the_model_reads_what_is_there_and_nothing_else(result: ExecResult, text: str) -> None:
    assert render(result) == text


def test_the_schema_names_the_tool_and_its_one_argument() -> None:
    (schema,) = schemas_of([Python])
    function = schema["function"]
    assert function["name"] == "python"
    assert list(function["parameters"]["properties"]) == ["code"]
    assert function["parameters"]["required"] == ["code"]


PLOT = Image(b"\x89PNG plot")
DREW = {
    "both": ExecResult(status="ok", stdout="a\n", value="3", images=(PLOT, PLOT)),
    "one": ExecResult(status="error", error="NameError: x", images=(PLOT,)),
    "only": ExecResult(status="ok", images=(PLOT,)),
}


@pytest.mark.parametrize(
    ("figures", "code", "content"),
    [
        (True, "both", ("a\n3", PLOT, PLOT)),
        (True, "one", ("NameError: x", PLOT)),
        (True, "only", (NO_OUTPUT, PLOT)),
        (False, "both", "a\n3\n(figures drawn but not shown: 2)"),
        (False, "only", "(figures drawn but not shown: 1)"),
    ],
)
async def test_figures_follow_the_text_when_the_model_can_see(
    monkeypatch: pytest.MonkeyPatch, figures: bool, code: str, content: Content
) -> None:
    async def open_scripted() -> Sandbox:
        return ScriptedSandbox(DREW)

    monkeypatch.setattr(session_tool, "open_session", open_scripted)
    box = await ToolSet.open(
        [functools.partial(Python, figures=figures)], context=CONTEXT, timeout_s=10
    )
    result = await box.call(ToolCall("call", "python", {"code": code}))
    assert (result.content, result.status) == (content, "ok")
    await box.close()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SandboxSettings(), id="namespaces", marks=pytest.mark.namespaces),
        pytest.param(
            SandboxSettings(backend="bubblewrap"), id="bubblewrap", marks=pytest.mark.bubblewrap
        ),
        pytest.param(BARE, id="process"),
    ],
)
async def test_it_keeps_a_tool_s_promises(settings: SandboxSettings) -> None:
    cells = ("x = 1200", "x += 18", "print('sum:'); x", "1 / 0")
    calls = [ToolCall(f"call_{n}", "python", {"code": code}) for n, code in enumerate(cells)]
    with using_sandbox(settings):
        proven = await check_tool(Python, calls=calls)
    assert "forks do not interfere" in proven


async def test_state_lives_on_and_a_fork_goes_its_own_way() -> None:
    with using_sandbox(BARE):
        tool = Python()
        await tool.open(CONTEXT)
        assert await tool.python("x = 1200") == NO_OUTPUT
        assert await tool.python("x + 18") == "1218"
        copy = await tool.fork()
        assert await copy.python("x = 0; x") == "0"
        await tool.close()
        await tool.close()
        assert await copy.python("x + 1") == "1"
        await copy.close()


async def test_what_the_code_does_is_text_and_a_lost_sandbox_is_not() -> None:
    with using_sandbox(BARE):
        tool = Python()
        with pytest.raises(SandboxError, match="not open"):
            await tool.python("1")
        await tool.open(CONTEXT)
        text = str(await tool.python("print('before')\n1 / 0"))
        assert text.splitlines()[0] == "before"
        assert text.splitlines()[-1] == "ZeroDivisionError: division by zero"
        assert "SIGKILL" in await tool.python("import os; os.kill(os.getpid(), 9)")
        with pytest.raises(SandboxError):
            await tool.python("import os; os.kill(os.getppid(), 9)")
        await tool.close()
