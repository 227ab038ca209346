"""Host of a worker: it holds environments by number, and answers with values only.

Whatever an environment raises travels as data, so that the other side can raise the same.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agentrl.env import Env
from agentrl.errors import (
    CancelledRollout,
    ConfigError,
    EngineError,
    EngineLost,
    EnvError,
    ForkUnsupported,
    JudgeError,
    RequestError,
    RolloutError,
    SandboxError,
    ToolFailure,
    VerifierError,
    WordingError,
)
from agentrl.runtime.run_id import using_run_id
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import convert_exit
from agentrl.runtime.user_code import append_place
from agentrl.sandbox import SandboxSettings, using_sandbox

Method = Literal["reset", "step", "fork", "close"]
ERRORS: dict[str, type[Exception]] = {
    "config": ConfigError,
    "fork": ForkUnsupported,
    "engine_lost": EngineLost,
    **{
        error.kind: error
        for error in (
            EnvError,
            RequestError,
            ToolFailure,
            SandboxError,
            VerifierError,
            JudgeError,
            WordingError,
            EngineError,
            CancelledRollout,
        )
    },
}
CLOSE_S = 60.0


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """An error of an environment's, as a value."""

    kind: str
    """One of `ERRORS`."""
    text: str

    @classmethod
    def from_error(cls, error: Exception) -> "RemoteFailure":
        """Return an error as a value; plain ones are the environment's."""
        match error:
            case ConfigError():
                return cls("config", str(error))
            case ForkUnsupported():
                return cls("fork", str(error))
            case EngineLost():
                return cls("engine_lost", str(error))
            case RolloutError():
                return cls(error.kind, append_place(str(error), error))
            case TimeoutError():
                return cls("env", "missed its deadline")
            case _:
                return cls("env", append_place(f"{type(error).__name__}: {error}", error))

    def error(self) -> Exception:
        """Return the error again."""
        return ERRORS[self.kind](self.text)


@dataclass(frozen=True, slots=True)
class EnvRunContext:
    """Settings that environments take from the run they are made for."""

    sandbox: SandboxSettings
    run_id: str


class EnvWorkerHost:
    """The environments of one process. They share what environments of a run share: pools, say.

    One event loop's own. `open` comes first.
    """

    def __init__(self, make_env: Callable[[], Env], belongings: EnvRunContext) -> None:
        self._make_env = make_env
        self._belongings = belongings
        self._envs: dict[int, Env] = {}
        self._calls: dict[int, asyncio.Task[Any]] = {}
        self._context: Context = copy_context()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Open the scope in which all environments live."""

        async def enter() -> None:
            self._stack.enter_context(using_run_id(self._belongings.run_id))
            self._stack.enter_context(using_sandbox(self._belongings.sandbox))
            await self._stack.enter_async_context(run_scope())

        await asyncio.create_task(enter(), context=self._context)

    async def call(self, number: int, method: Method, *arguments: Any) -> Any:
        """Call an environment, made when it is first reset; return its answer, or `RemoteFailure`.

        A fork answers with None, and lives on under the number it was given.
        """
        if number not in self._envs and method in ("step", "fork"):
            return RemoteFailure(
                "env", f"the worker of environment {number} has been replaced by another"
            )
        work = self._call(number, method, *arguments)
        # A context of its own, so that what an environment binds is its own.
        running = asyncio.create_task(convert_exit(work), context=self._context.copy())
        self._calls[number] = running
        running.add_done_callback(partial(self._forget_call, number))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.cancelled():
                raise
            return RemoteFailure("cancelled", f"{method} was cancelled")
        except Exception as error:  # noqa: BLE001 - the other side raises it
            return RemoteFailure.from_error(error)

    async def cancel(self, number: int) -> None:
        """Cancel what an environment is doing, and wait until it has stopped."""
        if (running := self._calls.get(number)) is not None:
            running.cancel()
            await asyncio.wait([running], timeout=CLOSE_S)

    async def close(self) -> None:
        """Close all environments and their scope. Idempotent."""
        for number in [*self._envs]:
            await self.cancel(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self.call(number, "close")
        await asyncio.create_task(self._stack.aclose(), context=self._context)

    @property
    def held(self) -> int:
        """Number of environments."""
        return len(self._envs)

    def _forget_call(self, number: int, call: "asyncio.Task[Any]") -> None:
        if self._calls.get(number) is call:
            del self._calls[number]

    async def _call(self, number: int, method: Method, *arguments: Any) -> Any:
        if method == "reset" and number not in self._envs:
            self._envs[number] = self._make_env()
        if method == "close":
            env = self._envs.pop(number, None)
            return None if env is None else await env.close()
        env = self._envs[number]
        if method == "reset":
            seed, options = arguments
            return await env.reset(seed=seed, options=options)
        if method == "step":
            return await env.step(*arguments)
        (copied,) = arguments
        self._envs[copied] = await env.fork()
        return None
