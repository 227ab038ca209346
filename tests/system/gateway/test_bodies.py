"""Bodies nobody would send: whatever it is, a request is answered or refused, and nothing raises.

A longer run: `AGENTRL_FUZZED=10000 pytest tests/system/gateway/test_bodies.py`.
"""

import asyncio
import copy
import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.env import Action
from agentrl.gateway import BadRequest, GatewaySession
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.bodies import parse_body
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.dialect import ApiDialect
from agentrl.gateway.responses import ResponsesDialect
from agentrl.message import ToolCall
from agentrl.store.codec import pack, unpack
from tests.system.gateway.test_gateway import BLOCKS, CHAT, INPUT, TOOL

FUZZED = int(os.environ.get("AGENTRL_FUZZED", "60"))
PROTOCOLS: list[tuple[ApiDialect, dict[str, Any]]] = [
    (ChatCompletionsDialect(), {"messages": CHAT, "tools": [TOOL], "stop": ["x"], "max_tokens": 3}),
    (
        ResponsesDialect(),
        {"input": INPUT, "instructions": "Be brief.", "previous_response_id": None},
    ),
    (AnthropicDialect(), {"messages": BLOCKS, "max_tokens": 3, "system": "Be brief."}),
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**300, 10**310),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["\ud800", "\0", "[" * 9000, "data:image/png;base64,AAAA", "</think>", "{" * 99]
    ),
    st.sampled_from(
        [[], {}, [[]] * 3, {"type": "text"}, {"type": "tool_result"}, {"role": "tool"}]
    ),
    st.recursive(st.text(max_size=2), lambda inner: st.lists(inner, max_size=2), max_leaves=80),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values within a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )  # pyright: ignore
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]  # pyright: ignore


@st.composite
def mutants(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    """Return a body in which some values are others, or gone, and some bytes too."""
    mutant: Any = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(mutant)[1:]))
        holder = mutant
        for key in way:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = copy.deepcopy(draw(ODD))  # a value may be drawn twice
        elif isinstance(holder, dict):
            del holder[last]
    data = bytearray(json.dumps(mutant), "utf-8")
    if draw(st.integers(0, 9)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


async def told(protocol: ApiDialect, data: bytes) -> None:
    """Ask what a body asks, and be answered; raises `BadRequest` and nothing else."""
    asked = protocol.read(parse_body(data), ())
    desk = GatewaySession()
    asking = asyncio.ensure_future(desk.ask(asked))
    question = asyncio.ensure_future(desk.next())
    await asyncio.wait((asking, question), return_when=asyncio.FIRST_COMPLETED)
    if not question.done():
        question.cancel()
        await asking
        return
    said = question.result()
    assert unpack(pack(said.messages)) == said.messages
    said.answer(Action("ok", (ToolCall("c", "f", {"a": [1]}),)))
    _, answer = await asking
    json.dumps(protocol.answer(asked, answer)).encode()
    assert [*protocol.events(asked, answer)]


@pytest.mark.parametrize(("protocol", "body"), PROTOCOLS, ids=["chat", "responses", "messages"])
@settings(max_examples=FUZZED, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
async def test_a_body_is_answered_or_refused(
    protocol: ApiDialect, body: dict[str, Any], data: st.DataObject
) -> None:
    try:
        await told(protocol, data.draw(mutants(body)))
    except BadRequest as error:
        text = json.dumps(protocol.error(400, str(error)), ensure_ascii=False).encode()
        assert len(text) < 2000
