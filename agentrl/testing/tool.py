"""`check_tool`: a tool's promises, proven on yours."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.authoring.toolset import ToolSet, resolve_tools, schemas_of
from agentrl.env import ToolSchema
from agentrl.errors import CheckError
from agentrl.message import ToolCall
from agentrl.runtime.scope import run_scope
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.tool import LateTools, ToolContext, ToolResult, ToolSource

_CONTEXT = ToolContext(task_id="check", sample=0, seed=0)

_Opener = Callable[[], Awaitable[ToolSet]]


async def check_tool(
    source: ToolSource | LateTools,
    *,
    calls: Sequence[ToolCall] = (),
    context: ToolContext = _CONTEXT,
    timeout_s: float = 30.0,
    grace_s: float = 5.0,
) -> tuple[str, ...]:
    """Prove a tool's promises and return them.

    Args:
        source: A function marked with `@tool`, a class that has marked methods, or `LateTools`.
        calls: Examples that must succeed, in order, on a fresh instance, with results that depend
            on nothing else. They show that a fork goes on where it was made, and disturbs nobody.
        context: Task, sample and seed that the tool is opened and called with.
        timeout_s: Deadline of every call, open, fork and close.
        grace_s: Time after close in which whatever was started must be gone.

    Returns:
        The promises that were proven, in words, such as `forks do not interfere`.

    Raises:
        CheckError: A promise is broken; the text begins with it.
        ConfigError: No schema can be made of the tool.
        ToolFailure: The tool raised something other than `ToolError`, or missed a deadline.
    """
    (source,) = await resolve_tools([source], timeout_s=timeout_s)
    proven = ["the schema is made from types and docstring"]
    schemas = schemas_of([source])
    for schema in schemas:
        _check_schema(schema)
    proven.append("the schema can be shown to a model")
    open_tools = partial(ToolSet.open, [source], context=context, timeout_s=timeout_s)

    async with run_scope():
        # What is imported or opened once is there after this, and is no leak.
        await _open_and_call(open_tools, calls)
        before = ProcessHoldings.take()
        await _check_bad_arguments(open_tools, schemas)
        proven.append("wrong arguments are answered, not raised")
        if calls:
            await _check_forks(open_tools, calls)
            proven += ["the examples succeed", "forks do not interfere"]
        await check_no_leak(before, grace_s=grace_s)
    return (*proven, "nothing is left after close")


def _check_schema(schema: ToolSchema) -> None:
    function: Mapping[str, Any] = schema["function"]
    name = str(function["name"])
    _expect(
        re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) is not None,
        "the name can be called",
        f"{name!r} is not letters, digits and _ (64 at most)",
    )
    _expect(
        bool(str(function.get("description") or "").strip()),
        "the tool is described",
        f"{name} has an empty description; begin its docstring with what it does",
    )
    json.dumps(schema)


async def _check_bad_arguments(open_tools: _Opener, schemas: Sequence[ToolSchema]) -> None:
    for schema in schemas:
        function = schema["function"]
        name = function["name"]
        parameters = function["parameters"]
        bad: list[dict[str, Any]] = [{"no_such_argument": 1}]
        if parameters.get("required"):
            bad.append({})
        bad += [
            {key: {"not": "fitting"}}
            for key, kind in parameters["properties"].items()
            if kind.get("type") in ("integer", "number", "boolean", "string")
        ]
        bad_calls = [ToolCall(f"bad_{i}", name, arguments) for i, arguments in enumerate(bad)]
        for wrong, result in zip(bad, await _open_and_call(open_tools, bad_calls), strict=True):
            _expect(
                result.status == "error",
                "wrong arguments are answered",
                f"{name} took {wrong} and returned {result.content!r}",
            )


async def _check_forks(open_tools: _Opener, calls: Sequence[ToolCall]) -> None:
    alone = await _open_and_call(open_tools, calls)
    for result in alone:
        _expect(
            result.status == "ok",
            "the examples succeed",
            f"{result.name} answered {result.content!r}",
        )
    again = await _open_and_call(open_tools, calls)
    _expect_same(alone, again, "instances do not interfere", 0)
    for count in range(len(calls) + 1):
        box = await open_tools()
        boxes = [box]
        first, rest, wanted = calls[:count], calls[count:], alone[count:]
        try:
            begun = await _make_calls(box, first)
            _expect_same(alone[:count], begun, "instances do not interfere", count)
            boxes.append(await box.fork())
            boxes.append(await box.fork())
            _expect_same(wanted, await _make_calls(boxes[1], rest), "a fork goes on", count)
            for other in (box, boxes[2]):
                answers = await _make_calls(other, rest)
                _expect_same(wanted, answers, "forks do not interfere", count)
                await other.close()
        finally:
            for opened in boxes:
                await opened.close()


async def _open_and_call(open_tools: _Opener, calls: Sequence[ToolCall]) -> list[ToolResult]:
    box = await open_tools()
    try:
        return await _make_calls(box, calls)
    finally:
        await box.close()
        await box.close()


async def _make_calls(box: ToolSet, calls: Sequence[ToolCall]) -> list[ToolResult]:
    return [await box.call(call) for call in calls]


def _expect_same(
    first: Sequence[ToolResult], second: Sequence[ToolResult], promise: str, made: int
) -> None:
    for one, other in zip(first, second, strict=True):
        _expect(
            (one.status, one.content) == (other.status, other.content),
            promise,
            f"after {made} calls, {one.name} answered {one.content!r} and then {other.content!r}; "
            "give the class `async def fork(self)` that copies everything it holds",
        )


def _expect(good: bool, promise: str, what: str) -> None:
    if not good:
        raise CheckError(f"{promise}: {what}")
