"""Answers of the gateway, validated field by field with the official clients' own types.

The clients themselves validate nothing, and frameworks on them do.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import Action, TurnUsage, say
from agentrl.gateway.answer import build_answer
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.dialect import ApiDialect
from agentrl.gateway.responses import ResponsesDialect
from agentrl.message import ToolCall
from tests.support import client_types

PLACE = Path(__file__).parents[3] / ".bench" / "agents"
USAGE = TurnUsage(70, 3, cached_tokens=40)
NAME = "python"
SCHEMA = {"type": "object", "properties": {}}
MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, tuple[ApiDialect, dict[str, Any]]] = {
    "chat": (
        ChatCompletionsDialect(),
        {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": {"name": NAME, "parameters": SCHEMA}}],
            "stream_options": {"include_usage": True},
        },
    ),
    "responses": (
        ResponsesDialect(),
        {
            "input": "hi",
            "instructions": "Be brief.",
            "tools": [{"type": "function", "name": NAME, "parameters": SCHEMA}],
        },
    ),
    "messages": (
        AnthropicDialect(),
        {"messages": MESSAGES, "tools": [{"name": NAME, "input_schema": SCHEMA}], "max_tokens": 9},
    ),
}
CALLS = (ToolCall("", NAME, {"code": "1", "é": [None, 1.5]}), ToolCall("", NAME, {}))
ACTIONS = {
    "text": say("Hello"),
    "nothing": say(""),
    "calls": Action("", CALLS, usage=USAGE),
    "both": Action("Let me see.", CALLS, usage=USAGE),
    "cut": Action("Once", usage=TurnUsage(70, 1, finish="length")),
    "malformed": Action("", (), ("bad",), malformed_text='<tool_call>{"name": "py'),
}


def bodies(protocol: str, action: Action) -> Iterator[tuple[str, Any]]:
    """Yield all that the gateway sends for an answer, whole and as a stream."""
    dialect, request = REQUESTS[protocol]
    asked = dialect.read({"model": "policy", **request})
    answer = build_answer(action, asked.request, id="0")
    yield protocol, dialect.answer(asked, answer)
    for event in dialect.events(asked, answer):
        if event.data != "[DONE]":
            yield f"{protocol}_stream", json.loads(event.data)


OLDER = {"ResponseFunctionCallArgumentsDoneEvent.name"}
"""Fields that openai 2 demands, and openai 3 no longer knows."""
ALL = [
    body
    for protocol in REQUESTS
    for action in ACTIONS.values()
    for body in bodies(protocol, action)
]


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("protocol", REQUESTS)
def test_answers_carry_all_that_the_clients_types_demand(protocol: str, name: str) -> None:
    faults = [
        fault
        for kind, body in bodies(protocol, ACTIONS[name])
        for fault in (
            *client_types.find_faults(kind, body),
            *(one for one in client_types.find_unknown(kind, body) if one not in OLDER),
        )
    ]
    assert faults == []


def test_a_missing_field_and_an_unknown_one_are_found() -> None:
    (kind, body), *_ = bodies("chat", ACTIONS["text"])
    del body["choices"][0]["index"]
    assert [*client_types.find_faults(kind, body)] != []
    (kind, body), *_ = bodies("messages", ACTIONS["both"])
    body["content"][0]["novel"] = 1
    assert [*client_types.find_unknown(kind, body)] == ["TextBlock.novel"]


@pytest.mark.agents
@pytest.mark.parametrize("folder", ["", "openai1", "openai2"])
@pytest.mark.nightly
def test_other_releases_of_the_clients_are_satisfied_as_well(folder: str) -> None:
    python = str(PLACE / "bin" / "python")
    ran = subprocess.run(
        [python, client_types.__file__],
        input=json.dumps(ALL),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(PLACE / folder)} if folder else {},
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
