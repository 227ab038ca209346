"""The toolbox of one trajectory: calls, deadlines, forks, closing."""

import asyncio
import functools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.authoring.toolset import ToolSet
from agentrl.errors import ConfigError, ForkUnsupported, ToolError, ToolFailure
from agentrl.message import Image, ToolCall
from agentrl.tool import ToolContext, ToolSource, tool

CONTEXT = ToolContext(task_id="t", sample=1, seed=3)


async def box_of(*sources: ToolSource, timeout_s: float = 20.0) -> ToolSet:
    return await ToolSet.open(sources, context=CONTEXT, timeout_s=timeout_s)


async def answer(box: ToolSet, name: str, **arguments: Any) -> tuple[str, Any]:
    result = await box.call(ToolCall("c", name, arguments))
    assert (result.call_id, result.name) == ("c", name)
    assert result.seconds >= 0
    return result.status, result.content


@tool
def double(value: int) -> int:
    """Double it."""
    return 2 * value


@tool
def give(kind: str, context: ToolContext) -> Any:
    """Give a value of some kind."""
    return {
        "text": "as it is",
        "number": 0.5,
        "list": ["ä", 1, None],
        "pair": ("a", "b"),
        "nothing": None,
        "object": threading.Lock,
        "image": Image(b"png"),
        "images": ("a", Image(b"png")),
        "context": context.task_id,
    }[kind]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", "as it is"),
        ("number", "0.5"),
        ("list", '["ä", 1, null]'),
        ("pair", '["a", "b"]'),
        ("nothing", "null"),
        ("object", str(threading.Lock)),
        ("image", (Image(b"png"),)),
        ("images", ("a", Image(b"png"))),
        ("context", "t"),
    ],
)
async def test_what_the_model_reads_of_a_value(kind: str, content: Any) -> None:
    assert await answer(await box_of(give), "give", kind=kind) == ("ok", content)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as many decorators do: what comes of it is no coroutine function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@tool
@passed_on
async def later(value: int) -> int:
    """Double it later."""
    await asyncio.sleep(0)
    return 2 * value


async def test_a_decorated_asynchronous_tool_is_awaited() -> None:
    assert await answer(await box_of(later), "later", value=4) == ("ok", "8")


@tool
def refuse() -> str:
    """Refuse."""
    raise ToolError("not on Sundays")


@tool
async def refuse_later() -> str:
    """Refuse, asynchronously."""
    await asyncio.sleep(0)
    raise ToolError("not on Mondays")


async def test_errors_that_the_model_can_react_to_are_answers() -> None:
    box = await box_of(double, refuse, refuse_later)
    assert await answer(box, "refuse") == ("error", "not on Sundays")
    assert await answer(box, "refuse_later") == ("error", "not on Mondays")
    status, text = await answer(box, "duoble", value=1)
    assert status == "error"
    assert "'duoble'" in text
    assert "Did you mean 'double'" in text
    status, text = await answer(box, "double", value="x")
    assert status == "error"
    assert "value" in text


@tool
def broken() -> str:
    """Break."""
    return json.loads("{")


@tool
def leaves() -> str:
    """Leave."""
    raise SystemExit(3)


@tool
def stops() -> str:
    """Stop an iteration that nobody runs."""
    return next(iter(()))


@tool
def late_socket() -> str:
    """Give up on a socket."""
    raise TimeoutError("read of a socket")


@tool
async def late_inside() -> str:
    """Give up on something, by a deadline of its own."""
    async with asyncio.timeout(0):
        await asyncio.sleep(30)
    return ""


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@tool
def untold() -> str:
    """Break, and break again when asked for the reason."""
    raise Untold


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (broken, "JSONDecodeError"),
        (leaves, "SystemExit"),
        (stops, "StopIteration"),
        (late_socket, "TimeoutError: read of a socket"),
        (late_inside, "TimeoutError: $"),
        (untold, "Untold, whose __str__ raised RuntimeError"),
    ],
)
async def test_any_other_exception_is_a_failure_of_the_tool(source: Any, words: str) -> None:
    box = await box_of(source)
    with pytest.raises(ToolFailure, match=f"tool '{source.__name__}'.*{words}"):
        await answer(box, source.__name__)


async def test_a_blocking_tool_misses_its_deadline_and_the_loop_goes_on() -> None:
    released = threading.Event()

    @tool
    def block() -> str:
        """Block."""
        released.wait(30)
        return "late"

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(30)
        return "late"

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    box = await box_of(block, wait, timeout_s=0.05)
    ticking = asyncio.create_task(tick())
    try:
        for name in ("block", "wait"):
            with pytest.raises(ToolFailure, match=rf"{name}.*tool_timeout_s=0.05.*deadline"):
                await answer(box, name)
    finally:
        ticking.cancel()
        released.set()
    assert ticks > 2


async def test_a_synchronous_tool_runs_beside_the_loop() -> None:
    here = threading.current_thread()

    @tool
    def where() -> bool:
        """Say whether this is the loop's thread."""
        return threading.current_thread() is here

    assert await answer(await box_of(where), "where") == ("ok", "false")


LOG: list[str] = []


class Notes:
    """A stateful tool with every hook."""

    def __init__(self, name: str = "notes") -> None:
        self.name = name
        self.lines: list[str] = []

    async def open(self, context: ToolContext) -> None:
        self.sample = context.sample
        LOG.append(f"open {self.name}")

    @tool
    def note(self, line: str) -> str:
        """Write a line."""
        self.lines.append(line)
        return " ".join(self.lines)

    async def fork(self) -> "Notes":
        other = Notes(f"{self.name}'")
        other.lines = list(self.lines)
        return other

    async def close(self) -> None:
        LOG.append(f"close {self.name}")


async def test_hooks_run_once_and_forks_go_their_own_way() -> None:
    LOG.clear()
    box = await box_of(Notes, double)
    await answer(box, "note", line="a")
    fork = await box.fork()
    assert await answer(fork, "note", line="b") == ("ok", "a b")
    assert await answer(box, "note", line="c") == ("ok", "a c")
    await box.close()
    await box.close()
    assert await answer(fork, "note", line="d") == ("ok", "a b d")
    await fork.close()
    assert LOG == ["open notes", "close notes", "close notes'"]


async def test_every_box_has_an_instance_of_its_own() -> None:
    one, other = await box_of(Notes), await box_of(Notes)
    await answer(one, "note", line="a")
    assert await answer(other, "note", line="b") == ("ok", "b")


class Counter:
    """A stateful tool without hooks: its fork is a deep copy."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @tool
    async def count(self) -> int:
        """Count."""
        self.seen.append(len(self.seen))
        return len(self.seen)


async def test_without_a_hook_a_fork_is_a_deep_copy() -> None:
    """A mutant with `copy.copy` shares the list and is caught."""
    box = await box_of(Counter)
    await answer(box, "count")
    fork = await box.fork()
    assert await answer(fork, "count") == ("ok", "2")
    assert await answer(box, "count") == ("ok", "2")


class Lock(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


async def test_what_cannot_be_copied_says_how_to_fork_it() -> None:
    LOG.clear()
    box = await box_of(Notes, Lock)
    with pytest.raises(ForkUnsupported, match=r"Lock .*async def fork"):
        await box.fork()
    assert LOG == ["open notes", "close notes'"]  # the half-made copy, and not the original


class Unopenable(Counter):
    async def open(self, context: ToolContext) -> None:
        LOG.append("open unopenable")
        raise OSError("no display")

    async def close(self) -> None:
        LOG.append("close unopenable")


async def test_what_was_opened_is_closed_when_a_later_one_fails() -> None:
    LOG.clear()
    with pytest.raises(ToolFailure, match=r"opening Unopenable.*no display"):
        await box_of(Notes, Unopenable)
    assert LOG == ["open notes", "open unopenable", "close unopenable", "close notes"]


class Unclosable(Counter):
    async def close(self) -> None:
        raise OSError("stuck")


async def test_the_fault_of_an_open_is_told_and_not_that_of_the_close_after_it() -> None:
    class Half:
        async def open(self, context: ToolContext) -> None:
            raise ValueError("no such shop")

        @tool
        def look(self) -> str:
            """Look."""
            return ""

        async def close(self) -> None:
            self.shop.close()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

    with pytest.raises(ToolFailure, match=r"opening .*: ValueError: no such shop") as failed:
        await box_of(Half)
    assert "has no attribute 'shop'" in failed.value.__notes__[0]


async def test_every_instance_is_closed_even_if_one_fails() -> None:
    LOG.clear()
    box = await box_of(Notes, Unclosable)
    with pytest.raises(ToolFailure, match=r"closing Unclosable.*stuck"):
        await box.close()
    assert LOG == ["open notes", "close notes"]
    await box.close()


class SlowToClose(Counter):
    async def close(self) -> None:
        await asyncio.sleep(30)


async def test_every_instance_is_closed_when_closing_is_cancelled() -> None:
    LOG.clear()
    box = await box_of(Notes, SlowToClose)
    closing = asyncio.create_task(box.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert LOG == ["open notes", "close notes"]


class SynchronousHook(Counter):
    def close(self) -> None: ...


async def test_a_hook_that_is_not_asynchronous_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SynchronousHook.close is a hook.*async def close"):
        await box_of(SynchronousHook)


class Browser:
    @tool
    async def open(self, url: str) -> str:
        """Open a page."""
        return f"<{url}>"


async def test_a_tool_may_have_the_name_of_a_hook() -> None:
    assert await answer(await box_of(Browser), "open", url="u") == ("ok", "<u>")


async def test_an_abandoned_thread_ends_quietly_after_its_loop() -> None:
    """A call that is cancelled while its thread works must not raise in the thread later."""
    began, released = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Wait to be let go."""
        began.set()
        released.wait(60)
        return "x"

    box = await box_of(slow, timeout_s=100.0)
    calling = asyncio.create_task(answer(box, "slow"))
    try:
        assert await asyncio.to_thread(began.wait, 60)
        (thread,) = [one for one in threading.enumerate() if one.name == "agentrl-slow"]
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    finally:
        released.set()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
