"""Bridges between synchronous and asynchronous code: threads for the one, a loop for the other."""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


KEEP_S = 1.0
"""Time for which a thread without a call is kept for the next one."""


class FunctionExit(RuntimeError):
    """A function in a thread ended by no error: `sys.exit`, an interrupt, a cancellation."""


async def run_in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread that it has to itself, and return what it returns.

    A thread cannot be stopped: a cancelled caller goes on at once, and the abandoned thread is a
    daemon that cannot keep the process alive. That is why this is not `asyncio.to_thread`, whose
    pool is joined at exit and which a few hung functions would fill. A thread whose call has ended
    is kept a moment for the next call: a start takes longer than most tools do.
    """
    return await _start(_idle_threads, function, *args, **kwargs)


async def run_user_code(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function of the user's as `run_in_thread` does, in a thread of another pool.

    Such a function may set what belongs to its thread, and leave it so: `torch.set_grad_enabled`,
    a default device, a number of threads. A step of the optimiser must not inherit that.
    """
    return await _start(_idle_user_threads, function, *args, **kwargs)


def _start(
    idle: "list[_KeptThread]", function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> "asyncio.Future[R]":
    """Start a call in a thread of a pool, and return what it will return. This is no task: a loop
    that ends cancels every task, and whoever must wait for the thread still has to."""
    future, work = _prepare_call(function, *args, **kwargs)
    name = f"agentrl-{getattr(function, '__name__', 'call')}"
    call = partial(contextvars.copy_context().run, work)
    try:
        thread = idle.pop()
    except IndexError:
        thread = _KeptThread(idle)
        thread.start()
    thread.name = name
    thread.calls.put(call)
    return future


class _KeptThread(threading.Thread):
    """A thread for one call after another, which ends when none comes for `KEEP_S`.

    Between calls it is in the list `idle`.
    """

    def __init__(self, idle: "list[_KeptThread]") -> None:
        super().__init__(daemon=True)
        self._idle = idle
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        while (call := self._next_call()) is not None:
            call()
            # What was returned belongs to the caller alone, and may be large.
            del call
            self._idle.append(self)

    def _next_call(self) -> "Callable[[], None] | None":
        try:
            return self.calls.get(timeout=KEEP_S)
        except queue.Empty:
            try:
                self._idle.remove(self)
            except ValueError:
                return self.calls.get()  # chosen this moment for a call
            return None


_idle_threads: list[_KeptThread] = []
"""Threads that wait for a call; the last to end one is the first to get the next."""
_idle_user_threads: list[_KeptThread] = []
os.register_at_fork(after_in_child=_idle_threads.clear)
os.register_at_fork(after_in_child=_idle_user_threads.clear)


def list_idle_threads() -> list[threading.Thread]:
    """Return the threads that are kept for the next call of `run_in_thread` or `run_user_code`."""
    return [*_idle_threads, *_idle_user_threads]


def _prepare_call(
    function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> "tuple[asyncio.Future[R], Callable[[], None]]":
    """Return a future of the running loop, and what settles it, to be called in another thread.

    The other thread lets go of the function and what it was given before the caller goes on: the
    last reference to a model, dropped in a thread of a program that ends, would abort the program.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    calls = [partial(function, *args, **kwargs)]
    name = getattr(function, "__name__", "call")

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = calls.pop()()
        except BaseException as caught:  # noqa: BLE001 - handed to the caller, whoever that is
            error = caught
        # An exit, a cancellation or a StopIteration of the function is no event of the caller's.
        if isinstance(error, StopIteration) or not isinstance(error, Exception | None):
            kind = RuntimeError if isinstance(error, StopIteration) else FunctionExit
            error = kind(f"{name} raised {error!r}")
        # The loop is closed when its caller was cancelled and everything ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    return future, work


class CallThread:
    """One thread that runs every call of an owner, in order: for objects that belong to a thread.

    The owner ends it with `end`, or by being forgotten. As with `run_in_thread`, a cancelled caller
    goes on at once, and the thread is a daemon.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._abandoned = False
        self._end = weakref.finalize(self, self._calls.put, None)
        self._thread = _CallRunner(self._calls, name)
        self._thread.start()

    async def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function after everything that was called before, and return its value."""
        future, work = _prepare_call(function, *args, **kwargs)
        self._calls.put(work)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandoned = True
            self._thread.abandoned_at_s = time.monotonic()
            raise

    async def end(self, last: Callable[[], object]) -> None:
        """Have `last` called, then end the thread; nobody waits where a caller was cancelled."""
        future, work = _prepare_call(last)
        self._calls.put(work)
        self._end()
        if not self._abandoned:
            await future


class _CallRunner(threading.Thread):
    """The thread of a `CallThread`; it holds no reference to its owner."""

    def __init__(self, calls: "queue.SimpleQueue[Callable[[], None] | None]", name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._calls = calls
        self._context = contextvars.copy_context()
        self.abandoned_at_s: float | None = None
        """Time at which the caller of the call that runs was cancelled."""

    def run(self) -> None:
        self._context.run(self._run_calls)

    def _run_calls(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
            self.abandoned_at_s = None
            # What was returned belongs to the caller alone, and may be large.
            del work


def list_stuck_threads(after_s: float) -> list[str]:
    """Return the names of the `CallThread`s whose call goes on so long after it was abandoned."""
    now_s = time.monotonic()
    return [
        thread.name
        for thread in threading.enumerate()
        if isinstance(thread, _CallRunner)
        and thread.abandoned_at_s is not None
        and now_s - thread.abandoned_at_s >= after_s
    ]


async def call_either(function: Callable[..., Awaitable[R] | R], /, *args: Any) -> R:
    """Call a function of either kind; a synchronous one runs in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await run_user_code(function, *args)
    return cast("R", await result if inspect.isawaitable(result) else result)


async def convert_exit(work: Awaitable[R]) -> R:
    """Await code of the user's in a task of its own; raise `RuntimeError` for a `sys.exit`."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


async def finish_in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function, such as an optimiser step, in a thread that a cancelled caller waits for."""
    return await await_to_the_end(_start(_idle_threads, function, *args, **kwargs))


async def await_to_the_end(
    work: "Coroutine[Any, Any, R] | asyncio.Future[R]",
    undo: Callable[[R], Coroutine[Any, Any, object]] | None = None,
    /,
    *,
    stop: Callable[[], object] = lambda: None,
) -> R:
    """Await work; a cancelled caller calls `stop` and waits for the work's end before it goes on.

    Where the work makes what somebody must let go of again, `undo` says how: nobody takes it then.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await _await_end(running)
        if undo is not None and running.exception() is None:
            await await_to_the_end(undo(running.result()))
        raise


async def make_in_thread(make: Callable[[], R], undo: Callable[[R], object], /) -> R:
    """Make something in a thread; a cancelled caller waits, and has it undone. Both may block."""
    return await run_in_stoppable_thread(lambda stop: make(), undo)


async def run_in_stoppable_thread(
    function: Callable[[threading.Event], R], undo: Callable[[R], object] | None = None, /
) -> R:
    """Run a function in a thread; a cancelled caller sets its event and waits for its end.

    For long work that looks at the event between steps and returns early, or raises. What it
    returns all the same is undone, where it says how: nobody takes it, also when the function had
    ended before the caller was cancelled. Both functions may block.
    """
    stop = threading.Event()
    undo_in_thread = None if undo is None else partial(finish_in_thread, undo)
    return await await_to_the_end(
        _start(_idle_threads, function, stop), undo_in_thread, stop=stop.set
    )


async def _await_end(running: asyncio.Future[R]) -> None:
    """Wait for the end of work whose caller is cancelled, however often: nobody is left to hear
    how it ended."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    running.exception()


def call_within(
    within_s: float, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Call a function in a thread of its own, and return what it returns.

    Raises `TimeoutError` after so many seconds. The thread is ended between two steps of Python: a
    single call of C that takes as long is not ended, and holds up everything where it keeps the
    interpreter.
    """
    results: list[R] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(function(*args, **kwargs))
        except SystemExit as error:  # its own, or the one that ends it
            errors.append(RuntimeError(f"it called sys.exit({error.code!r})"))
        except Exception as error:  # noqa: BLE001 - handed to the caller, whoever that is
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        identity = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


def run_to_the_end(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine from synchronous code; where a loop runs, as in a notebook, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, main).result()
