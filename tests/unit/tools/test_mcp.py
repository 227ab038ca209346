"""The pure parts of MCP tools: names, settings, what a result shows."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, Tool

from agentrl.authoring.toolset import load_tool
from agentrl.errors import ConfigError, ToolError
from agentrl.message import Image
from agentrl.testing.tool import check_tool
from agentrl.tool import given_tool
from agentrl_tools.mcp.result import render_content
from agentrl_tools.mcp.source import clean_name, mcp_tools, name_tools


def listed(*names: str) -> list[Tool]:
    return [Tool(name=name, input_schema={"type": "object"}) for name in names]


@given(st.lists(st.text(max_size=80), max_size=8, unique=True), st.sets(st.text(max_size=70)))
def test_names_are_legal_unique_and_nobody_elses(names: list[str], reserved: set[str]) -> None:
    called = name_tools(listed(*names), "server", reserved)
    assert [tool.name for tool in called.values()] == names
    assert not called.keys() & reserved
    for name in called:
        assert clean_name(name) == name
        assert 1 <= len(name) <= 64


def test_names_change_only_where_they_must() -> None:
    tools = listed("read", "write", "a.b", "a/b", "9lives")
    called = name_tools(tools, "files", {"write"})
    assert [*called] == ["read", "files_write", "a_b", "files_a_b", "_9lives"]
    assert [*name_tools(listed("x"), "s", {"x", "s_x"})] == ["s_x_2"]


def shown(*blocks: dict[str, Any], chars: int = 1000, image_bytes: int = 1000, **more: Any) -> Any:
    result = CallToolResult.model_validate({"content": blocks, **more})
    return render_content(result, text_chars=chars, image_bytes=image_bytes)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(data: bytes | str, kind: str = "image/png") -> dict[str, Any]:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "data": encoded, "mimeType": kind}


def test_every_kind_of_content_is_shown_or_named() -> None:
    assert shown(text("a"), text("b")) == "a\nb"
    assert shown() == "(no output)"
    assert shown(structuredContent={"a": 1}) == '{"a": 1}'
    assert shown(text("said"), structuredContent={"a": 1}) == "said"
    assert shown(text("see"), image(b"png")) == ("see", Image(b"png"))
    assert shown(image("no base64!")) == "(image left out: no base64 of image/png)"
    assert shown(image(b"<svg>", "image/svg+xml")) == "(image left out: image/svg+xml)"
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    assert shown(audio) == "(audio left out: audio/wav)"
    link = {"type": "resource_link", "name": "notes", "uri": "file:///notes"}
    assert shown(link) == "(resource notes: file:///notes)"
    inner = {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"}
    assert shown({"type": "resource", "resource": inner}) == "inside"
    blob = {"uri": "file:///b", "mimeType": "image/png", "blob": base64.b64encode(b"p").decode()}
    assert shown({"type": "resource", "resource": blob}) == (Image(b"p"),)
    pdf = {"uri": "file:///c", "mimeType": "application/pdf", "blob": "AAAA"}
    assert shown({"type": "resource", "resource": pdf}) == "(resource file:///c: application/pdf)"


def test_texts_and_images_are_bounded_together() -> None:
    assert shown(text("abcd"), text("efgh"), chars=6) == "abcd\nef\n(2 more characters were cut)"
    two = shown(image(b"1234"), image(b"5678"), image_bytes=6)
    assert two == (Image(b"1234"), "(image of 4 bytes left out)")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "not both"),
        ({"command": ["a"], "url": "http://b"}, "not both"),
        ({"command": "python server.py"}, "a list of words"),
        ({"url": "file:///etc"}, "http or https"),
        ({"url": "http://b", "env": {"A": "b"}}, "takes no env"),
        ({"command": ["a"], "headers": {"A": "b"}}, "no headers"),
        ({"command": ["a"], "scope": "run"}, "scope='run'"),
        ({"command": ["a"], "fork": "copy"}, "fork='copy'"),
        ({"command": ["a"], "timeout_s": 0}, "timeout_s=0"),
        ({"command": ["a"], "result_chars": float("nan")}, "result_chars=nan"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mcp_tools(**settings)


def test_a_config_names_tools() -> None:
    source = load_tool({"source": "agentrl_tools.mcp:mcp_tools", "command": ["server"]})
    assert "command=('server',)" in repr(source)
    assert load_tool("agentrl_tools.python:Python").__name__ == "Python"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="add `source"):
        load_tool({"command": ["server"]})
    with pytest.raises(ConfigError, match="commmand"):
        load_tool({"source": "agentrl_tools.mcp:mcp_tools", "commmand": ["server"]})


async def test_a_given_schema_is_shown_as_it_is_and_its_tool_checks_its_arguments() -> None:
    parameters = {
        "type": "object",
        "properties": {"from": {"type": "string"}},
        "required": ["from"],
    }
    schema = {
        "type": "function",
        "function": {"name": "move", "description": "Move.", "parameters": parameters},
    }

    async def call(**arguments: Any) -> str:
        if {*arguments} != {"from"} or not isinstance(arguments["from"], str):
            raise ToolError("it takes from")
        return "moved"

    assert "the schema can be shown to a model" in await check_tool(given_tool(call, schema))
