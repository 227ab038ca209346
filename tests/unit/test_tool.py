"""Tools: from a typed function to a schema and validated arguments."""

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agentrl.authoring.tool_schema import signature_of
from agentrl.authoring.toolset import schemas_of
from agentrl.errors import ConfigError, ToolError
from agentrl.tool import ToolContext, is_tool, tool

CONTEXT = ToolContext(task_id="t", sample=2, seed=3)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tool
def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


@tool
def paint(
    colour: Colour,
    context: ToolContext,
    *,
    where: Literal["wall", "door"] = "wall",
    coats: Annotated[int, Field(ge=1)] = 1,
) -> str:
    """Paint something.

    Args:
        colour: Which paint.
        where: What to paint.
        coats: How many times.

    Returns:
        What was done.
    """
    return f"{colour} {where} {coats} {context.sample}"


def test_a_marked_function_is_still_itself() -> None:
    assert multiply(6, 7) == 42
    assert is_tool(multiply)
    assert not is_tool(print)


def test_schema_without_an_args_section() -> None:
    assert schemas_of([multiply]) == (
        {
            "type": "function",
            "function": {
                "name": "multiply",
                "description": "Return a times b.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "integer", "description": "a"},
                        "b": {"type": "integer", "description": "b"},
                    },
                    "required": ["a", "b"],
                },
                "return": {"type": "integer"},
            },
        },
    )


def test_schema_hides_the_context_and_reads_the_args_section() -> None:
    (schema,) = schemas_of([paint])
    parameters = schema["function"]["parameters"]
    assert list(parameters["properties"]) == ["colour", "where", "coats"]
    assert parameters["required"] == ["colour"]
    assert parameters["properties"]["colour"] == {
        "type": "string",
        "enum": ["red", "blue"],
        "description": "Which paint.",
    }
    assert schema["function"]["return"] == {
        "type": "string",
        "description": "What was done.",
    }
    assert json.loads(json.dumps(schema)) == schema


def test_schema_is_made_once_per_function() -> None:
    assert schemas_of([multiply])[0] is schemas_of([multiply])[0]


def no_docstring(a: int) -> int:
    return a


def untyped(a: int, b) -> int:  # pyright: ignore
    """Add."""
    return a


def starred(*values: int) -> int:
    """Add."""
    return sum(values)


def counting(upto: int) -> Iterator[int]:
    """Count."""
    yield from range(upto)


async def counting_later(upto: int) -> AsyncIterator[int]:
    """Count."""
    yield upto


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_docstring, ["no_docstring", "no docstring", '"""']),
        (untyped, ["untyped", "'b'", "has no type", "b: int"]),
        (starred, ["starred", "*values", "list[int]"]),
        (counting, ["counting", "yields", "return it"]),
        (counting_later, ["counting_later", "yields"]),
    ],
)
def test_what_no_schema_can_be_made_of_is_refused(
    function: Callable[..., Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        tool(function)
    assert [word for word in words if word not in str(refused.value)] == []


def test_an_incomplete_args_section_is_refused() -> None:
    @tool
    def power(base: int, exponent: int) -> int:
        """Raise to a power.

        Args:
            base: What is raised.
        """
        return base**exponent

    with pytest.raises(ConfigError, match=r"power.*does not describe 'exponent'.*`exponent: desc"):
        schemas_of([power])


def test_an_args_entry_that_is_no_parameter_is_refused() -> None:
    @tool
    def power(base: int, exponent: int) -> int:
        """Raise to a power.

        Args:
            base: What is raised.
            exponent: How often.
            expnent: A typing error.
        """
        return base**exponent

    with pytest.raises(ConfigError, match=r"describes 'expnent'.*did you mean 'exponent'"):
        schemas_of([power])


def test_a_type_that_is_no_json_is_refused() -> None:
    class Secret: ...

    @tool
    def hide(secret: Secret) -> str:
        """Hide it."""
        return str(secret)

    with pytest.raises(ConfigError, match=r"hide.*Secret.*Use str, int"):
        schemas_of([hide])


def test_a_type_that_is_unknown_at_run_time_is_refused() -> None:
    def hide(secret: "Unknown") -> str:  # noqa: F821 # pyright: ignore
        """Hide it."""
        return ""

    with pytest.raises(ConfigError, match=r"hide.*Unknown.*import the type at run time"):
        schemas_of([tool(cast("Callable[..., Any]", hide))])


def test_arguments_are_coerced_and_the_context_filled_in() -> None:
    bound = signature_of(paint).bind({"colour": "blue", "coats": "3"}, CONTEXT)
    assert bound == {"colour": Colour.BLUE, "coats": 3, "context": CONTEXT}
    assert paint(**bound) == "Colour.BLUE wall 3 2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": "x", "b": 1}, ["multiply: a:", "valid integer"]),
        ({"a": 1.5, "b": 1}, ["a:", "integer"]),
        ({"a": None, "b": 1}, ["a:"]),
        ({"a": 1}, ["b: Field required"]),
        ({"a": 1, "b": 2, "c": 3}, ["c:"]),
        ({}, ["a: Field required; b: Field required", "It takes: a: int, b: int."]),
    ],
)
def test_arguments_that_do_not_fit_are_answered(
    arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ToolError) as refused:
        signature_of(multiply).bind(arguments, CONTEXT)
    assert [word for word in words if word not in str(refused.value)] == []


def test_constraints_of_annotated_types_hold() -> None:
    with pytest.raises(ToolError, match="coats: Input should be greater than or equal to 1"):
        signature_of(paint).bind({"colour": "red", "coats": 0}, CONTEXT)


def test_the_model_cannot_send_a_context() -> None:
    with pytest.raises(ToolError, match="context"):
        signature_of(paint).bind({"colour": "red", "context": {}}, CONTEXT)


def test_names_that_a_model_class_would_reserve_are_fine() -> None:
    @tool
    def odd(json: str, copy: int, model_config: bool, schema: list[int]) -> str:
        """Take oddly named arguments."""
        return json

    sent = {"json": "j", "copy": 1, "model_config": True, "schema": [1]}
    assert signature_of(odd).bind(sent, CONTEXT) == sent


@given(st.integers(), st.integers())
def test_integers_arrive_as_they_were_sent_even_as_text(a: int, b: int) -> None:
    assert signature_of(multiply).bind({"a": a, "b": str(b)}, CONTEXT) == {"a": a, "b": b}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]) | st.text(), JSON, max_size=4))
def test_anything_a_model_sends_is_bound_or_answered(arguments: dict[str, Any]) -> None:
    """A mutant that lets pydantic's error escape, or extra keys through, is caught here."""
    try:
        bound = signature_of(multiply).bind(arguments, CONTEXT)
    except ToolError:
        return
    assert arguments.keys() == {"a", "b"}
    assert [type(value) for value in bound.values()] == [int, int]


class Adder:
    def __init__(self, start: int = 0) -> None:
        self.total = start

    @tool
    def add(self, by: int) -> int:
        """Add to the total."""
        self.total += by
        return self.total

    @tool
    def reset(self) -> str:
        """Set the total to nothing."""
        self.total = 0
        return "done"

    def helper(self, untyped_is_fine):  # pyright: ignore
        return untyped_is_fine  # pyright: ignore


def test_methods_are_tools_in_their_order_without_self() -> None:
    schemas = schemas_of([functools.partial(Adder, start=3), multiply])
    assert [s["function"]["name"] for s in schemas] == ["add", "reset", "multiply"]
    assert list(schemas[0]["function"]["parameters"]["properties"]) == ["by"]
    assert schemas[1]["function"]["parameters"]["properties"] == {}


class Empty:
    pass


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([multiply, multiply], "two tools are named 'multiply'"),
        ([no_docstring], "no_docstring is not a tool; add @agentrl.tool"),
        ([Empty], "class Empty has no tool"),
        ([42], "42 is not a tool"),
    ],
)
def test_sources_that_are_no_tools_are_refused(sources: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schemas_of(sources)
