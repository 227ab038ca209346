"""Description of a tool for the model, and its accepted arguments: both from its signature."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NotRequired, cast, get_type_hints

from agentrl.authoring.docstring import DocSections, parse_docstring
from agentrl.authoring.json_schema import find_tool_fault
from agentrl.authoring.type_schema import UnsupportedTypeError, type_schema
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError, ToolError
from agentrl.runtime.argument_types import type_arguments
from agentrl.tool import ToolContext, given_schema, model_parameters

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_CHOICES = re.compile(r"\(choices:\s*(?=\[)", re.IGNORECASE)
"""Beginning of what may end a description."""


@dataclass(frozen=True)
class ToolSignature:
    """The parameters of one tool, resolved once per function."""

    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    """Parameters that the model fills in; annotations are types, never strings."""
    context_names: tuple[str, ...]
    """The parameters that are handed the `ToolContext`."""
    given: ToolSchema | None = None
    """The schema of a tool that brings its own, which also checks its own arguments."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def schema(self) -> ToolSchema:
        """Return the JSON schema, equal to that of `transformers.utils.get_json_schema`.

        What `bind` checks with is made here as well: its import takes 0.1 s, and every environment
        has its schemas before it plays, while calls are bound on the loop.
        """
        if self.given is not None:
            return self.given
        schema = _build_json_schema(self)
        _ = self._arguments
        return schema

    @cached_property
    def _arguments(self) -> "TypeAdapter[dict[str, Any]]":
        return _build_adapter(self)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments of the call, coerced to the declared types.

        Raises `ToolError` in words for the model when they do not fit.
        """
        arguments = type_arguments(arguments, self.schema["function"]["parameters"])
        if self.given is not None:
            return arguments
        from pydantic import ValidationError

        try:
            values = self._arguments.validate_python(arguments)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False)
            )
            takes = ", ".join(str(p) for p in self.parameters) or "no arguments"
            raise ToolError(f"{self.name}: {problems}. It takes: {takes}.") from error
        return values | dict.fromkeys(self.context_names, context)


@cache
def signature_of(function: Callable[..., Any]) -> ToolSignature:
    """Return the signature of a function, or of a method without its `self`.

    Raises `ConfigError` when a type cannot be resolved, or a given schema is none.
    """
    if (schema := given_schema(function)) is not None:
        if (fault := find_tool_fault(schema)) is not None:
            raise ConfigError(fault)
        return ToolSignature(function=function, parameters=(), context_names=(), given=schema)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"tool {function.__qualname__}: a type in its signature cannot be resolved ({error}); "
            "import the type at run time in the module that defines the tool"
        ) from error
    typed = [p.replace(annotation=hints[p.name]) for p in model_parameters(function)]
    return ToolSignature(
        function=function,
        parameters=tuple(p for p in typed if p.annotation is not ToolContext),
        context_names=tuple(p.name for p in typed if p.annotation is ToolContext),
    )


def _build_json_schema(signature: ToolSignature) -> ToolSchema:
    where = f"tool {signature.function.__qualname__}"
    doc = inspect.getdoc(signature.function)
    if not doc:
        raise ConfigError(f"{where} has no docstring, which tells the model what the tool does")
    sections = parse_docstring(doc)
    described = _describe_parameters(signature, sections)
    try:
        properties = {p.name: _parameter_schema(p, described[p.name]) for p in signature.parameters}
    except UnsupportedTypeError as error:
        raise ConfigError(
            f"{where}: {error} "
            "Use str, int, float, bool, Literal, Enum, list, dict or unions of them."
        ) from error
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [p.name for p in signature.parameters if p.default is p.empty]:
        parameters["required"] = required
    function = {
        "name": signature.name,
        "description": sections.description,
        "parameters": parameters,
        **_return_schema(signature, sections),
    }
    return {"type": "function", "function": function}


def _parameter_schema(parameter: inspect.Parameter, description: str) -> dict[str, Any]:
    """Return the schema of a parameter; `(choices: [...])` ends a description with its values."""
    schema = type_schema(parameter.annotation)
    text = description.rstrip()
    if text.endswith("])") and (choices := _CHOICES.search(text)) is not None:
        values = text[choices.end() : -1]
        try:
            schema["enum"] = json.loads(values)
        except ValueError as error:
            raise UnsupportedTypeError(
                f"{parameter.name} has the choices {values}, which are no JSON list ({error})."
            ) from error
        description = text[: choices.start()].strip()
    return {**schema, "description": description}


def _return_schema(signature: ToolSignature, sections: DocSections) -> dict[str, Any]:
    """Return the entry of what a tool returns; empty where its type has no schema."""
    hints = get_type_hints(signature.function)
    if "return" not in hints:
        return {}
    try:
        schema = type_schema(hints["return"])
    except UnsupportedTypeError:
        return {}
    return {"return": schema | ({"description": sections.returns} if sections.returns else {})}


def _describe_parameters(signature: ToolSignature, sections: DocSections) -> Mapping[str, str]:
    """Return the description of each parameter: its name where there is no `Args:` section."""
    names = [p.name for p in signature.parameters]
    described = sections.arguments
    if not described:
        return {name: name for name in names}
    where = f"tool {signature.function.__qualname__}"
    for name in names:
        if name not in described:
            raise ConfigError(
                f"{where}: the Args section of its docstring does not describe {name!r}; add a "
                f"line `{name}: description`, or remove the section"
            )
    for name in described.keys() - set(names) - set(signature.context_names):
        near = get_close_matches(name, names, n=1)
        raise ConfigError(
            f"{where}: the Args section of its docstring describes {name!r}, which is not a "
            f"parameter; {f'did you mean {near[0]!r}?' if near else f'it has {names}'}"
        )
    return described


def _build_adapter(signature: ToolSignature) -> "TypeAdapter[dict[str, Any]]":
    from pydantic import ConfigDict, TypeAdapter, with_config
    from typing_extensions import TypedDict

    # A TypedDict and not a model: a model reserves names such as `copy` and `json`, which are fine
    # names for a parameter.
    fields: dict[str, Any] = {
        p.name: p.annotation if p.default is p.empty else NotRequired[p.annotation]
        for p in signature.parameters
    }
    typed_dict: Any = cast("Any", TypedDict)("Arguments", fields)
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(typed_dict))
