"""A tool's parameters are a JSON schema of an object, or its fault is named with its path.

Mutants seen caught: the inner schemas not looked at; `required` compared where the properties are
named elsewhere.
"""

from typing import Any

import pytest

from agentrl.authoring.env_contract import check_opening, check_step
from agentrl.authoring.json_schema import find_tool_fault
from agentrl.authoring.toolset import schemas_of
from agentrl.env import Observation, TurnRequest
from agentrl.errors import ConfigError, ContractError
from agentrl.message import Message
from agentrl.testing import ScriptedEnv
from agentrl.tool import given_tool


def make_tool(parameters: Any) -> dict[str, Any]:
    function = {"name": "look", "description": "Look.", "parameters": parameters}
    return {"type": "function", "function": function}


def with_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"at": schema}}


FAULTS: dict[str, tuple[Any, str]] = {
    "a list": (["at"], 'parameters is ["at"]; give a JSON schema such as'),
    "a text": ("object", 'parameters is "object"; give a JSON schema'),
    "a fruit": ({"type": "banana"}, 'parameters.type is "banana"; the arguments of a call are'),
    "an array": ({"type": "array"}, 'parameters.type is "array"; the arguments of a call are'),
    "fruit within": (
        with_property({"type": "banana"}),
        'parameters.properties.at.type is "banana"; give one of array, boolean, ',
    ),
    "one of two": (
        with_property({"type": ["string", "fruit"]}),
        'parameters.properties.at.type is "fruit"; give',
    ),
    "no type": (with_property({"type": []}), "parameters.properties.at.type is []; give one of"),
    "a class": (with_property({"type": int}), "parameters.properties.at.type is <class 'int'>"),
    "no schema": (with_property("string"), 'parameters.properties.at is "string"; give a JSON'),
    "names only": (
        {"type": "object", "properties": ["at"]},
        'parameters.properties is ["at"]; give schemas by name',
    ),
    "items": (
        with_property({"type": "array", "items": {"type": "int"}}),
        'parameters.properties.at.items.type is "int"; give one of',
    ),
    "an alternative": (
        with_property({"anyOf": [{"type": "string"}, {"type": "None"}]}),
        'parameters.properties.at.anyOf[1].type is "None"',
    ),
    "an enum": (
        with_property({"enum": "ab"}),
        'parameters.properties.at.enum is "ab"; give a list',
    ),
    "required": (
        {**with_property({"type": "string"}), "required": ["at", "by"]},
        "parameters.required names 'by', but the properties are 'at'; add it to properties, or",
    ),
    "required yes": (
        with_property({"type": "string", "required": True}),
        "parameters.properties.at.required is true; give a list of names",
    ),
}
SCHEMAS: dict[str, Any] = {
    "none": None,
    "empty": {},
    "no properties": {"type": "object"},
    "nested": with_property({"type": "object", "properties": {"x": {"type": ["null", "number"]}}}),
    "anything": with_property({}),
    "yes": with_property(True),
    "an older draft's items": with_property({"type": "array", "items": [{"type": "string"}, True]}),
    "named elsewhere": {"properties": {}, "required": ["at"], "anyOf": [with_property({})]},
    "a reference": {"$ref": "#/$defs/A", "$defs": {"A": with_property({})}, "required": ["at"]},
    "keys of others": with_property({"type": "string", "format": "date", "x-order": 3}),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_with_its_tool_and_path(case: str) -> None:
    parameters, words = FAULTS[case]
    assert (find_tool_fault(make_tool(parameters)) or "").startswith(f"tool 'look': {words}")


@pytest.mark.parametrize("case", SCHEMAS)
def test_a_schema_is_none(case: str) -> None:
    assert find_tool_fault(make_tool(SCHEMAS[case])) is None


def test_a_tool_that_brings_its_schema_is_refused_when_it_is_read() -> None:
    async def call(**_: Any) -> str:
        return "seen"

    with pytest.raises(ConfigError, match=r"^tool 'look': parameters.type is \"banana\""):
        schemas_of([given_tool(call, make_tool({"type": "banana"}))])


def test_tools_of_an_observation_are_schemas() -> None:
    """Those of a program, which were written for models that took them, are left as they are."""
    env, wrong = ScriptedEnv(), (make_tool({"type": "banana"}),)
    said = (Message("user", "Look."),)
    with pytest.raises(ContractError, match=r"^reset .*: tool 'look': parameters.type is"):
        check_opening(env, (Observation(said, tools=wrong), {}))
    with pytest.raises(ContractError, match=r"^step .*: tool 'look': parameters.type is"):
        check_step(env, (Observation(said, tools=wrong), 0.0, False, False, {}))
    check_opening(env, (Observation(said, tools=wrong, request=TurnRequest()), {}))
