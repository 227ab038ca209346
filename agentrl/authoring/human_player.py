"""A person who plays an episode: in the terminal, or where an environment has a seat for one."""

import ast
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from agentrl.env import Action, Observation, ToolSchema, say
from agentrl.errors import AgentrlError
from agentrl.message import Message, ToolCall
from agentrl.runtime.json_limits import read_json

HELP = """\
Type a tool call, such as  search(query="tides", most=3)
or as JSON,                {"name": "search", "arguments": {"query": "tides"}}
Separate several calls of one turn with ; on one line.
Anything else is sent as a text message, such as an answer. A line with only . sends no text.
/tools list the tools   /skip this task   /leave the session   /help"""


class TaskSkipped(AgentrlError):
    """The person does not do this task; nothing of it is kept."""


class PlayerLeft(AgentrlError):
    """The person has had enough; nothing of this task is kept."""


class HumanPlayer(Protocol):
    """Interface through which a person plays."""

    @property
    def invitation(self) -> str:
        """Instructions for the person."""
        ...

    async def act(self, new: Observation, seen: tuple[Message, ...]) -> Action:
        """Return the person's next action; raise `TaskSkipped` or `PlayerLeft`."""
        ...


@runtime_checkable
class HumanPlayable(Protocol):
    """An environment in which a person acts better than by typing calls."""

    def seat(self, *, at: str = "") -> AbstractAsyncContextManager[HumanPlayer]:
        """Return the place, open as long as its block; `at` says where, if anywhere."""
        ...


class TerminalPlayer:
    """A person who reads observations and types calls."""

    invitation = HELP

    def __init__(self, ask: Callable[[], Awaitable[str]], show: Callable[[str], None]) -> None:
        """Ask for a line by `ask`, which raises `EOFError` at the end; show texts by `show`."""
        self._ask = ask
        self._show = show
        self._tools: tuple[ToolSchema, ...] = ()
        self._pictures: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> "TerminalPlayer":
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._pictures is not None:
            self._pictures.cleanup()

    async def act(self, new: Observation, seen: tuple[Message, ...]) -> Action:
        if new.tools is not None:
            self._tools = new.tools
        for message in new.messages:
            self._show(self._render(message))
        while True:
            try:
                line = (await self._ask()).strip()
            except EOFError:
                raise PlayerLeft("the terminal was closed") from None
            except UnicodeDecodeError as error:
                self._show(f"this line is not UTF-8 ({error.reason}); type it again")
                continue
            match line:
                case "":
                    continue
                case "/help":
                    self._show(HELP)
                case "/tools":
                    self._show(
                        "\n".join(map(render_signature, self._tools)) or "there are no tools"
                    )
                case "/skip":
                    raise TaskSkipped("this task was skipped")
                case "/leave":
                    raise PlayerLeft("the player left")
                case _:
                    try:
                        functions: list[Any] = [t.get("function", t) for t in self._tools]
                        return parse_action(line, [str(f.get("name")) for f in functions])
                    except ValueError as error:
                        self._show(f"{error}; type /help for help")

    def _render(self, message: Message) -> str:
        if isinstance(message.content, str):
            return f"[{message.role}] {message.content}"
        parts: list[str] = []
        for part in message.content:
            if isinstance(part, str):
                parts.append(part)
                continue
            self._pictures = self._pictures or tempfile.TemporaryDirectory(prefix="agentrl-")
            file = Path(self._pictures.name) / f"{part.digest[:12]}.{part.media_type[6:]}"
            file.write_bytes(part.data)
            parts.append(f"(picture: {file})")
        return f"[{message.role}] {' '.join(parts)}"


def parse_action(line: str, tools: Sequence[str]) -> Action:
    """Return the action that a typed line means: calls of these tools, or words.

    Raises `ValueError` for what looks like a call of a tool and cannot be read.
    """
    if line == ".":
        return say("")
    if line.startswith("{"):
        calls = [_parse_json_call(line)]
    else:
        if not any(line.startswith(f"{tool}(") for tool in tools):
            return say(line)
        calls = _parse_python_calls(line)
    for name, _ in calls:
        if name not in tools:
            raise ValueError(f"there is no tool {name!r}; the tools are {', '.join(tools)}")
    return Action(
        "",
        tuple(ToolCall(f"call_{i}", name, arguments) for i, (name, arguments) in enumerate(calls)),
    )


def render_signature(tool: ToolSchema) -> str:
    """Return a tool as a line: name, arguments, and the first line of what it is for."""
    function = cast("dict[str, Any]", tool.get("function", tool))
    parameters = function.get("parameters", {})
    required = parameters.get("required", ())
    arguments = [
        name if name in required else f"{name}=..." for name in parameters.get("properties", {})
    ]
    about = str(function.get("description", "")).partition("\n")[0]
    return f"{function.get('name')}({', '.join(arguments)})  {about}".rstrip()


def _parse_json_call(line: str) -> tuple[str, dict[str, Any]]:
    try:
        call = read_json(line)
        return str(call["name"]), dict(call.get("arguments", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"this is not a tool call in JSON: {error!r}") from error


def _parse_python_calls(line: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        body = ast.parse(line).body
    except SyntaxError as error:
        raise ValueError(f"this cannot be parsed as a tool call: {error.msg}") from error
    calls: list[tuple[str, dict[str, Any]]] = []
    for statement in body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("arguments of a tool call must be named: tool(argument=value)")
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ValueError("write each argument as argument=value; ** is not read")
            if keyword.arg in arguments:
                raise ValueError(f"{keyword.arg} is given twice; give it once")
            try:
                arguments[keyword.arg] = ast.literal_eval(keyword.value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{keyword.arg} is not a literal value: {error}") from error
        calls.append((call.func.id, arguments))
    return calls
