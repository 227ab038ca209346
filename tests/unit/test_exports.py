"""What users may rely on: the public names, each with a docstring, and nothing more."""

import inspect
from importlib import import_module
from typing import Literal, get_origin

import pytest

import agentrl

PUBLIC = [
    "Action",
    "ConfigError",
    "Env",
    "Image",
    "Message",
    "Observation",
    "Split",
    "Task",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "call",
    "evaluate",
    "make",
    "register",
    "register_tool_env",
    "registry",
    "rewards",
    "sample_pairs",
    "say",
    "show_progress",
    "spec",
    "tool",
    "train",
]


def test_the_public_names_are_these() -> None:
    """A name that goes breaks users' code, a name that comes is kept: decide, then edit."""
    assert agentrl.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    value = getattr(agentrl, name)
    # A type alias has no docstring of its own.
    assert get_origin(value) is Literal or inspect.getdoc(value)


def test_a_run_changes_no_public_name() -> None:
    """Importing a submodule sets it as an attribute of the package, over what was there."""
    import_module("agentrl.run.train")
    assert callable(agentrl.train)
    assert callable(agentrl.evaluate)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = agentrl.trian  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
