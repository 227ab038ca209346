"""Step 2 of the flow: tools the agent may call.

A tool is a typed function. Tools that share state are the `@tool` methods of one class: every
trajectory gets an instance of its own for its whole life, and a fork gets a copy. Such a class may
have three hooks, all asynchronous and all optional:

- `open(self, context: ToolContext)` acquires what the instance needs;
- `fork(self)` returns an independent copy; without it the copy is `copy.deepcopy`;
- `close(self)` releases everything.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from agentrl.errors import ConfigError
from agentrl.message import Content, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Task, sample and seed of a call. A tool that declares a parameter of this type is handed it,
    and so is the `open` of a class of tools; the model never sees it."""

    task_id: str
    """Id of the task."""
    sample: int
    """Index of the trajectory within its group."""
    seed: int
    """Seed of the trajectory's tools: equal for the same task, sample and seed of the episode."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """`Task.data` of the task, such as what a tool is to open for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of one call. An `error` is an answer to the model, not a failure of the episode."""

    call_id: str
    """Id of the call that this answers."""
    name: str
    """Name of the tool."""
    content: Content
    """Answer, as the model reads it."""
    status: Literal["ok", "error"]
    """Whether the tool answered, or refused."""
    seconds: float = 0.0
    """Wall time of the call."""

    @property
    def message(self) -> Message:
        """Return the result as the tool message of a conversation."""
        return Message("tool", self.content, tool_call_id=self.call_id, name=self.name)


ToolSource = Callable[..., Any]
"""A function marked with `@tool`, or a class (or `functools.partial` of one) that has marked
methods."""


class LateTools(ABC):
    """Tools that are known only once somebody has been asked, such as the tools of a server."""

    @abstractmethod
    async def known(self, taken: Collection[str]) -> ToolSource:
        """Return the source that stands for it.

        Args:
            taken: Names of the other tools; none of these tools may have one of them.

        Returns:
            A function marked with `@tool`, or a class that has marked methods.
        """


F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__agentrl_tool__"
_GIVEN = "__agentrl_schema__"


def tool(function: F) -> F:
    """Mark a function or a method as a tool the model may call, and return it unchanged.

    Its name, type hints and Google-style docstring become the schema the model reads. An `Args:`
    section is optional; one that is there describes every parameter. Raise `ToolError` to answer
    the model with an error; anything else that escapes fails the trajectory. A function that is
    not `async` runs in a thread. Text, an `Image` and a tuple of both reach the model as they are,
    any other value as JSON.

    Args:
        function: A function or a method whose parameters all have a name and a type. One of type
            `ToolContext` is filled in by the environment.

    Returns:
        The same function.

    Raises:
        ConfigError: There is no docstring, a parameter has no name or no type, or it yields.
    """
    name = function.__qualname__
    if not inspect.getdoc(function):
        raise ConfigError(
            f"tool {name} has no docstring, which tells the model what the tool does; add one "
            'below its def, such as """Return a times b."""'
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"tool {name} yields its answer in parts, but a call has one answer; return it, such "
            'as "\\n".join(parts)'
        )
    for parameter in model_parameters(function):
        _check(name, parameter)
    setattr(function, _MARK, True)
    return function


def given_tool(function: F, schema: Mapping[str, Any]) -> F:
    """Mark an asynchronous function of keyword arguments as a tool that `schema` describes."""
    function.__name__ = str(schema["function"]["name"])
    setattr(function, _GIVEN, schema)
    setattr(function, _MARK, True)
    return function


def given_schema(function: object) -> Mapping[str, Any] | None:
    """Return the schema a tool was marked with, or None where it is made from the signature."""
    return getattr(function, _GIVEN, None)


def is_tool(function: object) -> bool:
    """Return whether `function` was marked with `@tool`."""
    return getattr(function, _MARK, False) is True


def model_parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters in order, without `self`; the context's is still among them."""
    parameters = tuple(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls") and not _typed(parameters[0]):
        return parameters[1:]
    return parameters


def _typed(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is not inspect.Parameter.empty


def _check(tool_name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigError(
            f"tool {tool_name}: parameter {str(parameter)!r} has no name that the model could use; "
            "name every parameter, such as `values: list[int]`"
        )
    if not _typed(parameter):
        raise ConfigError(
            f"tool {tool_name}: parameter {parameter.name!r} has no type, but the schema is "
            f"derived from types; annotate it, such as `{parameter.name}: int`"
        )
