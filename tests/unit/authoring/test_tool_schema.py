"""Schemas of tools are those of transformers, for which chat templates are written.

Mutants seen caught: `nullable` left out; a union's types in the order they are written; the choices
kept in the description; a section that ends nowhere; the next parameter taken for a text that goes
on.
"""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import (
    TypeHintParsingException,
    get_json_schema,
    parse_google_format_docstring,
)

from agentrl.authoring.docstring import parse_docstring
from agentrl.authoring.tool_schema import signature_of
from agentrl.authoring.type_schema import UnsupportedTypeError, type_schema
from agentrl.errors import ConfigError


class Level(Enum):
    LOW = 1
    HIGH = "high"
    NONE = None


class Empty(Enum): ...


def search(
    query: str,
    limit: int | None = None,
    kinds: list[Literal["page", "file", 3]] | str = "page",
    where: dict[str, tuple[int, float]] | None = None,
    level: Optional[Level] = None,  # noqa: UP045
    tea: str = "green",
) -> list[dict[str, Any]]:
    """Search the corpus.

    It has pages and files.

    Args:
        query: Words to look for,
            one or more:
                as many as you like.
        limit: Number of results

        kinds: Kinds of results.
        where: Places.
        level: How deep.
        tea: The tea (choices: ["green", "black"])

    Returns:
        The results,
        best first.

    Raises:
        ValueError: There is no corpus.
    """
    return []


def compute(a: int, *, b: float = 1.0) -> tuple[int, ...]:
    """Compute.

    Args:
        a: One.
        b: Two.

    Returns: what comes out.
    """
    return (a,)


def wait() -> None:
    """Wait."""


def unknown(a: int) -> inspect.Signature:
    """Do.
    Args:
      a: It.
    Raises:
      OSError: Never.
    """
    raise OSError(a)


@pytest.mark.parametrize("function", [search, compute, wait, unknown])
def test_the_schema_is_that_of_transformers(function: Callable[..., Any]) -> None:
    schema: Any = signature_of(function).schema
    assert repr(schema) == repr(get_json_schema(function)), "in the same order, too"


SCALARS = st.sampled_from([int, float, str, bool, Any, list, dict, tuple, Level])
CHOICES = st.lists(st.sampled_from([1, "a", True, None, 2.5]), min_size=1, unique=True)


def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: Annotated[hint, "note"]),
        inner.map(lambda hint: Optional[hint]),  # noqa: UP045
        pairs.map(lambda two: tuple[two[0], two[1]]),
        pairs.map(lambda two: two[0] | two[1] if Any not in two else Any),
        CHOICES.map(lambda values: Literal[tuple(values)]),  # pyright: ignore
    )


@given(st.recursive(SCALARS, grow, max_leaves=6))
def test_every_type_has_the_schema_of_transformers(hint: Any) -> None:
    def function(a: Any) -> None:
        """Do.

        Args:
            a: It.
        """

    function.__annotations__ = {"a": hint}
    theirs = get_json_schema(function)["function"]["parameters"]["properties"]["a"]
    assert repr(type_schema(hint) | {"description": "It."}) == repr(theirs)


@pytest.mark.parametrize("hint", [Empty, tuple[int], tuple[int, ...], set[int], complex, bytes])
def test_a_type_that_transformers_refuses_is_refused(hint: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="the type"):
        type_schema(hint)
    wait.__annotations__ = {"a": hint}
    try:
        with pytest.raises(TypeHintParsingException):
            get_json_schema(wait)
    finally:
        wait.__annotations__ = {}


def test_choices_that_are_no_list_are_refused() -> None:
    def drink(tea: str) -> None:
        """Drink.

        Args:
            tea: The tea (choices: [green])
        """

    with pytest.raises(ConfigError, match=r"drink.*tea has the choices \[green\]"):
        _ = signature_of(drink).schema


LINES = st.lists(
    st.sampled_from(
        ["", "Do it.", "  a: One.", "    b: Two.", "    more of it", "  c:  Three, as: in b."]
    ),
    max_size=5,
)


@given(st.tuples(LINES, st.none() | LINES, st.none() | LINES, st.none() | LINES))
def test_sections_are_those_of_transformers(bodies: tuple[list[str] | None, ...]) -> None:
    headings = ("Do.", "Args:", "Returns:", "Raises:")
    parts = [(name, body) for name, body in zip(headings, bodies, strict=True) if body is not None]
    text = inspect.cleandoc("\n".join("\n".join([name, *body]) for name, body in parts))
    description, arguments, returns = parse_google_format_docstring(text)
    mine = parse_docstring(text)
    assert (mine.description, mine.arguments) == (description, arguments)
    assert mine.returns == (returns or "")
