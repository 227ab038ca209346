"""Tools on one session: one is opened and one is forked, whichever tools a class combines."""

import functools

import pytest

from agentrl.authoring.toolset import schemas_of
from agentrl.errors import ForkUnsupported
from agentrl.message import ToolCall
from agentrl.sandbox import Sandbox
from agentrl.testing.sandbox import ScriptedSandbox
from agentrl.testing.tool import check_tool
from agentrl.tool import ToolContext, tool
from agentrl_tools import session_tool
from agentrl_tools.files import ListFiles, ReadFile
from agentrl_tools.python import NO_OUTPUT, Python
from agentrl_tools.shell import Shell
from agentrl_tools.workspace import Workspace

CONTEXT = ToolContext(task_id="t", sample=0, seed=0)
ALL = {"python", "shell", "read_file", "write_file", "edit_file", "list_files"}


class Some(Python, Shell, ReadFile):
    """What a user writes to offer a selection, with a tool and a state of their own."""

    def __init__(self, *, figures: bool = False, notes: tuple[str, ...] = ()) -> None:
        super().__init__(figures=figures)
        self.notes: list[object] = [*notes]

    @tool
    def note(self, text: str) -> int:
        """Keep a note and return how many there are."""
        self.notes.append(text)
        return len(self.notes)


def names(source: object) -> set[str]:
    return {schema["function"]["name"] for schema in schemas_of([source])}  # pyright: ignore[reportArgumentType]


def test_a_class_offers_what_it_combines() -> None:
    assert names(Workspace) == ALL
    assert names(functools.partial(Workspace, figures=True)) == ALL
    assert names(Some) == {"python", "shell", "read_file", "note"}
    assert names(ListFiles) == {"list_files"}


async def test_one_session_is_opened_and_forked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ScriptedSandbox] = []

    async def open_scripted() -> Sandbox:
        made.append(ScriptedSandbox({}))
        return made[-1]

    monkeypatch.setattr(session_tool, "open_session", open_scripted)
    mine = Some(notes=("first",))
    await mine.open(CONTEXT)
    assert made == []
    assert await mine.session() is await mine.session() is made[0]
    copy = await mine.fork()
    assert await copy.session() is not made[0]
    assert len(made) == 1
    assert (copy.note("theirs"), mine.note("ours")) == (2, 2)
    assert (copy.notes, mine.notes) == (["first", "theirs"], ["first", "ours"])
    await mine.close()
    assert made[0].closed
    assert (await copy.session()) is not made[0]
    await copy.close()


async def test_what_cannot_be_copied_cannot_be_forked() -> None:
    mine = Some()
    mine.notes.append(n for n in (1, 2))
    await mine.open(CONTEXT)
    with pytest.raises(ForkUnsupported, match="tool Some holds something that copy"):
        await mine.fork()


@pytest.mark.namespaces
async def test_all_tools_see_the_same_files() -> None:
    mine = Workspace()
    await mine.open(CONTEXT)
    try:
        await mine.write_file("a.txt", "1\n")
        assert await mine.shell("mkdir d; cd d; cat ../a.txt; echo 2 >> ../a.txt") == "1"
        assert await mine.python("open('a.txt').read()") == "'1\\n2\\n'"
        assert await mine.python("open('b', 'w').close()") == NO_OUTPUT
        assert await mine.list_files() == "a.txt (4 bytes)\nb (0 bytes)\nd/"
        copy = await mine.fork()
        await mine.shell("rm ../a.txt")
        assert await copy.shell("basename $PWD; cat ../a.txt") == "d\n1\n2"
        await copy.close()
    finally:
        await mine.close()


@pytest.mark.namespaces
async def test_it_keeps_a_tool_s_promises() -> None:
    calls = [
        ToolCall("1", "write_file", {"path": "n.py", "content": "n = 6\n"}),
        ToolCall("2", "shell", {"command": "sed -i s/6/7/ n.py; wc -l n.py"}),
        ToolCall("3", "python", {"code": "exec(open('n.py').read()); n * 6"}),
        ToolCall("4", "read_file", {"path": "n.py"}),
    ]
    proven = await check_tool(Workspace, calls=calls)
    assert "forks do not interfere" in proven
