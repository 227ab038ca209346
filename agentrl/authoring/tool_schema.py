"""Description of a tool for the model, and its accepted arguments: both from its signature."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NotRequired, cast, get_type_hints

from agentrl.env import ToolSchema
from agentrl.errors import ConfigError, ToolError
from agentrl.runtime.argument_types import type_arguments
from agentrl.tool import ToolContext, given_schema, model_parameters

if TYPE_CHECKING:
    from pydantic import TypeAdapter


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
        """Return the JSON schema, as `transformers.utils.get_json_schema` makes it.

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

    Raises `ConfigError` when a type cannot be resolved.
    """
    if (schema := given_schema(function)) is not None:
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
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    stand_in = _build_stand_in(signature)
    try:
        try:
            return get_json_schema(stand_in)
        except TypeHintParsingException:
            # Older ones cannot write every type that a tool returns, such as tuple[X, ...].
            if stand_in.__annotations__.pop("return", None) is None:
                raise
            return get_json_schema(stand_in)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(
            f"tool {signature.function.__qualname__}: {error} "
            "Use str, int, float, bool, Literal, Enum, list, dict or unions of them."
        ) from error


def _build_stand_in(signature: ToolSignature) -> Callable[..., Any]:
    """Return a function that looks like the tool does to the model: no `self`, no context."""

    def stand_in() -> None: ...

    returns = get_type_hints(signature.function).get("return", inspect.Signature.empty)
    stand_in.__name__ = signature.name
    stand_in.__doc__ = _complete_docstring(signature)
    stand_in.__annotations__ = {p.name: p.annotation for p in signature.parameters}
    if returns is not inspect.Signature.empty:
        stand_in.__annotations__["return"] = returns
    call_signature = inspect.Signature(list(signature.parameters), return_annotation=returns)
    stand_in.__signature__ = call_signature  # pyright: ignore[reportFunctionMemberAccess]
    return stand_in


def _complete_docstring(signature: ToolSignature) -> str:
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    doc = inspect.getdoc(signature.function) or ""
    _, described, _ = parse_google_format_docstring(doc)
    names = [p.name for p in signature.parameters]
    if not described:
        if not names:
            return doc
        head, *rest = re.split(r"(?=\n(?:Returns|Raises):)", doc, maxsplit=1)
        return f"{head}\n\nArgs:\n" + "".join(f"    {n}: {n}\n" for n in names) + "".join(rest)
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
    return doc


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
