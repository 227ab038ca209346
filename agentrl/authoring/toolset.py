"""The tools of one trajectory: opened with it, forked with it, closed with it."""

import asyncio
import copy
import functools
import inspect
import json
import time
import types
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self, TypeVar, cast

from agentrl.authoring.tool_schema import ToolSignature, signature_of
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError, ForkUnsupported, ToolError, ToolFailure, blame
from agentrl.message import Content, Image, ToolCall
from agentrl.runtime.imports import import_callable
from agentrl.runtime.threads import run_user_code
from agentrl.tool import LateTools, ToolContext, ToolResult, ToolSource, is_tool

T = TypeVar("T")
_WITH_ADDRESS = (
    *(types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType),
    *(types.FunctionType, types.MethodType),
)
"""Classes whose text holds an address."""


async def resolve_tools(
    sources: Sequence[ToolSource | LateTools], *, timeout_s: float
) -> tuple[ToolSource, ...]:
    """Return the sources, the late ones asked for their tools, within `timeout_s` each."""
    tool_sources = list(sources)
    if not any(isinstance(source, LateTools) for source in sources):
        return tuple(cast("list[ToolSource]", tool_sources))
    tool_names = {*signatures_of([s for s in sources if not isinstance(s, LateTools)])}
    for at, source in enumerate(sources):
        if isinstance(source, LateTools):
            what = f"asking {source!r} for its tools (tool_timeout_s={timeout_s:g})"
            limit = asyncio.timeout(timeout_s)
            with blame(ToolFailure, what, limit=limit):
                async with limit:
                    tool_sources[at] = tool_source = await source.known(tool_names)
            tool_names |= signatures_of([tool_source]).keys()
    return tuple(cast("list[ToolSource]", tool_sources))


def schemas_of(sources: Sequence[ToolSource]) -> tuple[ToolSchema, ...]:
    """Return the schemas of every tool, in order, without opening anything.

    Raises `ConfigError` for what is no tool and for two tools of one name.
    """
    return tuple(signature.schema for signature in signatures_of(sources).values())


def signatures_of(sources: Sequence[ToolSource]) -> dict[str, ToolSignature]:
    """Return the signature of every tool by name; raises as `schemas_of` does."""
    signatures: dict[str, ToolSignature] = {}
    for source in sources:
        for name, function in _find_functions(source).items():
            if name in signatures:
                raise ConfigError(
                    f"two tools are named {name!r}, the second in {_label(source)}, but tool names "
                    "must be unique; rename or remove one of them"
                )
            signatures[name] = signature_of(function)
    return signatures


class ToolSet:
    """Calls the tools of one trajectory by name, and owns the instances behind them."""

    def __init__(
        self, holders: "Sequence[_ToolHolder]", *, context: ToolContext, timeout_s: float
    ) -> None:
        self._holders = tuple(holders)
        self._context = context
        self._timeout_s = timeout_s
        self._tools = {name: tool for holder in holders for name, tool in holder.tools.items()}

    @classmethod
    async def open(
        cls, sources: Sequence[ToolSource | LateTools], *, context: ToolContext, timeout_s: float
    ) -> Self:
        """Make and open an instance of every class among `sources`.

        `timeout_s` bounds every call, open, fork and close. What was opened is closed again when a
        later one fails.
        """
        sources = await resolve_tools(sources, timeout_s=timeout_s)
        signatures_of(sources)
        async with _close_on_failure(timeout_s) as holders:
            for source in sources:
                what = f"opening {_label(source)} (tool_timeout_s={timeout_s:g})"
                limit = asyncio.timeout(timeout_s)
                with blame(ToolFailure, what, limit=limit):
                    holders.append(_ToolHolder.from_source(source))
                    async with limit:
                        await holders[-1].open(context)
        return cls(holders, context=context, timeout_s=timeout_s)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call.

        Args:
            call: Name and arguments, as the model gave them.

        Returns:
            The answer. An unknown tool, arguments that do not fit and `ToolError` are answers of
            status `error`, worded for the model.

        Raises:
            ToolFailure: The tool raised anything else, or missed its deadline.
        """
        start_s = time.monotonic()
        content, status = await self._answer(call)
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=content,
            status=status,
            seconds=time.monotonic() - start_s,
        )

    def instance(self, kind: type[T]) -> T:
        """Return the open instance of a class among the sources.

        Args:
            kind: The class, or one that it inherits from.

        Raises:
            ConfigError: No source is of that class.
        """
        for holder in self._holders:
            if isinstance(holder.instance, kind):
                return holder.instance
        raise ConfigError(
            f"{kind.__qualname__} is not among these tools; add the class to tools=[...]"
        )

    async def fork(self) -> Self:
        """Return an independent toolbox whose instances are copies of these as they are now.

        Raises `ForkUnsupported` when an instance cannot be copied.
        """
        async with _close_on_failure(self._timeout_s) as holders:
            for holder in self._holders:
                limit = asyncio.timeout(self._timeout_s)
                what = f"forking {type(holder.instance).__name__}"
                with blame(ToolFailure, what, limit=limit):
                    async with limit:
                        holders.append(await holder.fork())
        return type(self)(holders, context=self._context, timeout_s=self._timeout_s)

    async def close(self) -> None:
        """Close every instance, last opened first, even if one fails or the caller is cancelled.

        Idempotent. Raises the `ToolFailure` of an instance that would not close.
        """
        holders, self._holders, self._tools = self._holders, (), {}
        await _close_all(holders, self._timeout_s)

    async def _answer(self, call: ToolCall) -> tuple[Content, Literal["ok", "error"]]:
        what = f"tool {call.name!r} (tool_timeout_s={self._timeout_s:g})"
        limit = asyncio.timeout(self._timeout_s)
        with blame(ToolFailure, what, limit=limit):
            try:
                if call.name not in self._tools:
                    raise ToolError(_describe_unknown(call.name, list(self._tools)))
                signature, function = self._tools[call.name]
                arguments = signature.bind(call.arguments, self._context)
                async with limit:
                    return _render_value(await _invoke(function, arguments)), "ok"
            except ToolError as refusal:
                return str(refusal), "error"


@dataclass(frozen=True, slots=True)
class _ToolHolder:
    """One source, made: a function, or an instance and its bound methods."""

    instance: object | None
    tools: Mapping[str, tuple[ToolSignature, Callable[..., Any]]]

    @classmethod
    def from_source(cls, source: ToolSource) -> "_ToolHolder":
        if is_tool(source):
            signature = signature_of(source)
            return cls(None, {signature.name: (signature, source)})
        return cls.from_instance(source())

    @classmethod
    def from_instance(cls, instance: object) -> "_ToolHolder":
        functions = _find_functions(type(instance))
        return cls(
            instance,
            {
                name: (signature_of(function), getattr(instance, name))
                for name, function in functions.items()
            },
        )

    async def open(self, context: ToolContext) -> None:
        if (hook := self._hook("open")) is not None:
            await hook(context)

    async def fork(self) -> "_ToolHolder":
        if self.instance is None:
            return self
        if (hook := self._hook("fork")) is not None:
            return _ToolHolder.from_instance(await hook())
        try:
            return _ToolHolder.from_instance(copy.deepcopy(self.instance))
        except (TypeError, copy.Error) as error:
            raise ForkUnsupported(
                f"tool {type(self.instance).__name__} holds something that copy.deepcopy cannot "
                f"copy ({error}); add `async def fork(self)` that returns an independent copy"
            ) from error

    async def close(self) -> None:
        if (hook := self._hook("close")) is not None:
            await hook()

    def _hook(self, name: str) -> Callable[..., Any] | None:
        hook = getattr(self.instance, name, None)
        return None if self.instance is None or is_tool(hook) else hook


def _find_functions(source: ToolSource) -> dict[str, Callable[..., Any]]:
    if is_tool(source):
        return {source.__name__: source}
    owner = source
    while isinstance(owner, functools.partial):
        owner = cast("functools.partial[Any]", owner).func
    if not isinstance(owner, type):
        raise ConfigError(
            f"{_label(source)} is not a tool; add @agentrl.tool to the function, or pass a class "
            "whose methods have it (functools.partial(Class, ...) to set its arguments)"
        )
    names = dict.fromkeys(name for base in reversed(owner.__mro__) for name in vars(base))
    functions = {name: getattr(owner, name) for name in names if is_tool(getattr(owner, name))}
    if not functions:
        raise ConfigError(
            f"class {owner.__qualname__} has no tool; add @agentrl.tool to the methods that the "
            "model may call"
        )
    for name in ("open", "fork", "close"):
        hook = getattr(owner, name, None)
        if hook is not None and not is_tool(hook) and not inspect.iscoroutinefunction(hook):
            raise ConfigError(
                f"{owner.__qualname__}.{name} is a hook of a tool and must be asynchronous; write "
                f"`async def {name}`, or mark it with @tool if the model may call it"
            )
    return functions


def _label(source: object) -> str:
    return getattr(source, "__qualname__", None) or repr(source)


def _describe_unknown(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    tools = ", ".join(known) or "none"
    return f"There is no tool {name!r}.{hint} The tools are: {tools}."


async def _invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await run_user_code(function, **arguments)
    # What a decorator has made of an asynchronous function need not look like one.
    return await result if inspect.isawaitable(result) else result


def _render_value(value: object) -> Content:
    """Return a tool's value as the model reads it: text as it is, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Image):
        return (value,)
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        kinds = [type(part) for part in parts]
        if Image in kinds and set(kinds) <= {Image, str}:
            return cast("tuple[str | Image, ...]", parts)
    try:
        return _encode_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the tool returned a value of type {type(value).__name__}, which is neither text nor "
            f"JSON ({error}); return what the model should read"
        ) from None


def _encode_json(value: object) -> str:
    # A value that is no text and no JSON at all is shown as its own text, without quotation marks.
    if not isinstance(value, int | float | list | dict | tuple | set | frozenset | None):
        return _describe_value(value)
    return json.dumps(value, ensure_ascii=False, default=_to_json)


def _to_json(value: object) -> object:
    """Return JSON's form of a value within a list or a dict, the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(cast("set[object]", value), key=_encode_json)
    return _describe_value(value)


def _describe_value(value: object) -> str:
    kind = type(value)
    has_address = isinstance(value, _WITH_ADDRESS)
    if has_address or (kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__):
        # Its text would be an address, another one each time.
        raise TypeError(f"{kind.__name__} has no text of its own; add a __str__ to the class")
    return str(value)


async def _close_all(holders: Sequence[_ToolHolder], timeout_s: float) -> None:
    if not holders:
        return

    async def close(holder: _ToolHolder) -> None:
        what = f"closing {type(holder.instance).__name__} (tool_timeout_s={timeout_s:g})"
        limit = asyncio.timeout(timeout_s)
        with blame(ToolFailure, what, limit=limit):
            async with limit:
                await holder.close()

    async with AsyncExitStack() as stack:
        for holder in holders:
            stack.push_async_callback(close, holder)


@asynccontextmanager
async def _close_on_failure(timeout_s: float) -> AsyncGenerator[list[_ToolHolder]]:
    """Yield a list; what was put into it is closed if the block does not end well."""
    holders: list[_ToolHolder] = []
    try:
        yield holders
    except BaseException as error:
        try:
            await _close_all(holders, timeout_s)
        except ToolFailure as failure:  # of what is open by half, and no news beside its cause
            error.add_note(str(failure))
        raise


def load_tool(given: ToolSource | LateTools | str | Mapping[str, Any]) -> ToolSource | LateTools:
    """Return the tools that a config names, or those given as they are.

    `"module:name"` is a function marked with `@tool` or a class with such methods;
    `{"source": "module:name", ...}` is what `name` returns for the other keys, which it is called
    with. Raises `ConfigError` for what cannot be imported and for arguments that do not fit.
    """
    if isinstance(given, str):
        return import_callable(given)
    if not isinstance(given, Mapping):
        return given
    settings = dict(cast("Mapping[str, Any]", given))
    source = settings.pop("source", None)
    if not isinstance(source, str):
        raise ConfigError(
            f"a tool is given as {dict(given)}, without its source; add "
            '`source: "module:name"`, such as `source: agentrl_tools.mcp:mcp_tools`'
        )
    make = cast("Callable[..., ToolSource | LateTools]", import_callable(source))
    try:
        return make(**settings)
    except TypeError as error:
        raise ConfigError(f"tool {source} with {settings}: {error}") from error
