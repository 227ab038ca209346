"""Threads for work that must not be left half done.

Mutants seen caught: the caller does not wait; the event is not set; the result is lost;
the error of stopped work is left for the garbage collector to complain about; what was made for a
cancelled caller is kept, or undone for one who has it; what had been made just before the cancel is
kept; a second cancel ends the wait; a call that is late goes on; a thread is not kept, or kept for
ever, or given a call while it has one; a kept thread counts as a leak.
"""

import asyncio
import contextvars
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentrl.runtime.threads import (
    await_to_the_end,
    call_within,
    finish_in_thread,
    list_idle_threads,
    make_in_thread,
    run_in_stoppable_thread,
    run_in_thread,
    run_to_the_end,
    run_user_code,
)
from agentrl.testing.leaks import ProcessHoldings


async def test_results_and_errors_come_back() -> None:
    assert await finish_in_thread(divmod, 7, 2) == (3, 1)
    assert await run_in_stoppable_thread(lambda stop: stop.is_set()) is False
    with pytest.raises(ZeroDivisionError):
        await finish_in_thread(divmod, 7, 0)


async def test_a_thread_is_kept_for_the_next_call() -> None:
    first = await run_in_thread(threading.current_thread)
    await wait_until(lambda: first in list_idle_threads())
    variable.set("of the second call")
    assert await run_in_thread(see_thread) == (first, "agentrl-see_thread", "of the second call")


async def test_what_the_users_code_sets_for_its_thread_is_seen_by_no_call_of_ours() -> None:
    """Mutants with one pool of threads for both, in either function, are caught."""
    local = threading.local()

    def set_grad_enabled() -> threading.Thread:
        local.is_grad_enabled = False
        return threading.current_thread()

    thread = await run_user_code(set_grad_enabled)
    await wait_until(lambda: thread in list_idle_threads())
    for call in (run_in_thread, finish_in_thread):
        assert not await call(hasattr, local, "is_grad_enabled")
    assert await run_user_code(threading.current_thread) is thread


async def test_a_thread_has_let_go_of_its_call_when_the_caller_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that ends meanwhile aborts where a thread drops the last reference to a model. The
    mutant that keeps the function until the thread is done is caught."""

    gate = threading.Event()

    def step(given: object) -> threading.Thread:
        gate.wait(30)  # until the caller awaits it, and no frame of its start is left
        return threading.current_thread()

    given = object()
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    counts: list[tuple[int, int]] = []

    def keep(*arguments: Any) -> None:
        counts.append((sys.getrefcount(step), sys.getrefcount(given)))
        told.append(arguments)

    calling = asyncio.ensure_future(run_in_thread(step, given))
    await asyncio.sleep(0)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_soon_threadsafe", keep)
        gate.set()
        await wait_until(lambda: bool(told) and told[0][1] in list_idle_threads())
    assert counts == [(sys.getrefcount(step), sys.getrefcount(given))]
    loop.call_soon_threadsafe(*told[0])
    await calling


async def test_a_call_is_never_given_to_a_thread_that_has_one() -> None:
    both = threading.Barrier(2, timeout=30)
    places = await asyncio.gather(*(run_in_thread(both.wait) for _ in range(2)))
    assert sorted(places) == [0, 1], "one waited for the other in its own thread"


async def test_a_thread_without_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.runtime.threads.KEEP_S", 0.05)
    threads = {await run_in_thread(threading.current_thread) for _ in range(3)}
    await wait_until(lambda: not any(thread.is_alive() for thread in threads))
    assert not threads & {*list_idle_threads()}
    assert await run_in_thread(threading.current_thread) not in threads


async def test_calls_at_the_moment_at_which_a_thread_ends_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.runtime.threads.KEEP_S", 1e-4)
    for number in range(300):
        assert await asyncio.wait_for(run_in_thread(divmod, number, 1), 30) == (number, 0)
        await asyncio.sleep(number % 5 * 5e-5)


async def test_a_kept_thread_is_no_leak_but_one_with_a_call_is() -> None:
    await wait_until(lambda: not list_idle_threads())
    before, goes = ProcessHoldings.take(), threading.Event()
    await run_in_thread(lambda: None)
    await wait_until(lambda: bool(list_idle_threads()))
    assert before.find_leaks(ProcessHoldings.take()) == []
    call = asyncio.create_task(run_in_thread(goes.wait))
    await asyncio.sleep(0)
    leaks = before.find_leaks(ProcessHoldings.take())
    goes.set()
    await call
    assert "thread agentrl-wait" in leaks


variable = contextvars.ContextVar("variable", default="")


def see_thread() -> tuple[threading.Thread, str, str]:
    """Return the thread of this call, its name, and the variable of its caller."""
    thread = threading.current_thread()
    return thread, thread.name, variable.get()


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - threads set no event
            await asyncio.sleep(0.001)


async def test_a_cancelled_caller_waits_for_what_cannot_be_left_half_done() -> None:
    began, goes, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert goes.wait(30)
        done.set()

    task = asyncio.create_task(finish_in_thread(work))
    await cancelled(task, began, goes)
    assert done.is_set()


async def cancelled(
    task: "asyncio.Task[Any]", began: threading.Event, goes: threading.Event
) -> None:
    """Cancel who waits for a thread that has begun, see it wait, and let the thread go on."""
    assert await asyncio.to_thread(began.wait, 30)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    goes.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_cancelled_caller_had_made_is_undone() -> None:
    began, goes, undone = threading.Event(), threading.Event(), list[str]()

    def make() -> str:
        began.set()
        assert goes.wait(30)
        return "made"

    goes.set()
    assert await make_in_thread(make, undone.append) == "made"
    assert undone == []
    began.clear()
    goes.clear()
    await cancelled(asyncio.create_task(make_in_thread(make, undone.append)), began, goes)
    assert undone == ["made"]


async def test_what_could_not_be_made_is_not_undone() -> None:
    began, goes, undone = threading.Event(), threading.Event(), list[object]()

    def fail() -> str:
        began.set()
        assert goes.wait(30)
        raise OSError("no")

    goes.set()
    with pytest.raises(OSError, match="no"):
        await make_in_thread(fail, undone.append)
    began.clear()
    goes.clear()
    await cancelled(asyncio.create_task(make_in_thread(fail, undone.append)), began, goes)
    assert undone == []


async def test_what_is_made_without_a_thread_is_undone_too() -> None:
    goes, undone = asyncio.Event(), list[str]()

    async def make(named: str) -> str:
        await goes.wait()
        if named == "broken":
            raise OSError("no")
        return named

    async def undo(found: str) -> None:
        await asyncio.sleep(0)
        undone.append(found)

    for named in ("one", "broken"):
        task = asyncio.create_task(await_to_the_end(make(named), undo))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        goes.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes.clear()
    assert undone == ["one"]
    goes.set()
    assert await await_to_the_end(make("two"), undo) == "two"
    assert undone == ["one"]


async def test_a_cancelled_caller_stops_work_that_looks() -> None:
    began = threading.Event()
    steps: list[int] = []
    unheard: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: unheard.append(context))

    def work(stop: threading.Event) -> None:
        began.set()
        assert stop.wait(timeout=30), "nobody stopped it"
        steps.append(1)
        raise RuntimeError("stopped half-way")

    task = asyncio.create_task(run_in_stoppable_thread(work))
    assert await asyncio.to_thread(began.wait, 30)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
    assert steps == [1]
    assert unheard == [], "an error nobody can hear any more was reported"


@pytest.mark.parametrize("way", [make_in_thread, run_in_stoppable_thread])
async def test_what_was_ready_before_its_caller_was_cancelled_is_undone(
    way: Callable[..., Coroutine[Any, Any, str]],
) -> None:
    began, goes, ended = threading.Event(), threading.Event(), threading.Event()
    undone: list[str] = []

    def make(stop: threading.Event | None = None) -> str:
        began.set()
        assert goes.wait(30)
        assert stop is None or not stop.is_set(), "it was told to stop"
        ended.set()
        return "made"

    task = asyncio.create_task(way(make, undone.append))
    assert await asyncio.to_thread(began.wait, 30)
    let_end(goes, ended)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["made"]


def let_end(goes: threading.Event, ended: threading.Event) -> None:
    """Let a thread end while the loop stands still, so that it has not heard of it."""
    goes.set()
    assert ended.wait(30)
    time.sleep(0.05)


async def test_a_caller_that_is_cancelled_again_goes_on_waiting() -> None:
    began, ends, undone = threading.Event(), threading.Event(), list[str]()

    def make() -> str:
        began.set()
        assert ends.wait(30)
        return "made"

    task = asyncio.create_task(make_in_thread(make, undone.append))
    assert await asyncio.to_thread(began.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["made"]


def test_what_is_being_made_when_the_loop_ends_is_undone() -> None:
    began, goes, undone = threading.Event(), threading.Event(), list[str]()

    def make() -> str:
        began.set()
        assert goes.wait(30)
        return "made"

    async def main() -> "asyncio.Task[str]":
        task = asyncio.create_task(make_in_thread(make, undone.append))
        assert await asyncio.to_thread(began.wait, 30)
        threading.Timer(0.1, goes.set).start()
        return task

    assert asyncio.run(main()).cancelled()
    assert undone == ["made"]


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_a_coroutine_runs_from_plain_code() -> None:
    assert run_to_the_end(answer()) == 42


async def test_a_coroutine_runs_where_a_loop_runs_already() -> None:
    assert run_to_the_end(answer()) == 42


def test_a_call_within_a_time_returns_or_raises() -> None:
    assert call_within(60.0, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        call_within(60.0, divmod, 7, 0)
    with pytest.raises(RuntimeError, match=r"it called sys\.exit\(3\)"):
        call_within(60.0, sys.exit, 3)


def test_a_call_that_is_late_is_ended() -> None:
    threads: list[threading.Thread] = []

    def loop() -> None:
        threads.append(threading.current_thread())
        while True:
            pass

    with pytest.raises(TimeoutError):
        call_within(0.1, loop)
    threads[0].join(60)
    assert not threads[0].is_alive()
