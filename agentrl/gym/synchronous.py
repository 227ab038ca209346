"""Every agentrl environment as a synchronous `gymnasium.Env`, with text on both sides.

`agentrl.register` shows an environment to Gymnasium at once; `agentrl.gymnasium_envs` shows those
of installed distributions. The other direction is `agentrl.gym.text_env`.
"""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import gymnasium

from agentrl.env import Env, Info, Observation
from agentrl.errors import ConfigError
from agentrl.gym.text_form import ActionSpace, ObservationSpace, action_of, observation_text
from agentrl.runtime.scope import leave_scope

T = TypeVar("T")
_STOP_S = 10.0


class LoopThread:
    """Runs coroutines for synchronous callers, also for those inside another running loop.

    The owner closes it. The thread is a daemon, so an owner that forgot cannot keep the process.
    """

    def __init__(self) -> None:
        ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        ready = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=_serve, args=(ready,), name="agentrl-loop", daemon=True
        )
        self._thread.start()
        self._loop, self._stop = ready.result(_STOP_S)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` and return its result; cancel it and raise `TimeoutError` after `timeout_s`.

        It sees the caller's context variables, except the scope, which belongs to another loop.
        """
        with leave_scope():
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """Cancel what still runs and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_S)


def _serve(
    ready: "concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    async def run_until_stopped() -> None:
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    asyncio.run(run_until_stopped())


_ENTRY_POINT = "agentrl.gym.synchronous:synchronous"


class SynchronousEnv(gymnasium.Env[str, str]):
    """Runs an agentrl environment on an event loop of its own, which `close` ends.

    Observations and actions are texts, see `agentrl.gym.text_form`. `info["tool_results"]` has no
    timings, so that equal episodes have equal infos. `timeout_s` bounds every call.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self, env: Env, *, render_mode: str | None = None, timeout_s: float = 600.0
    ) -> None:
        self.env = env
        self.render_mode = render_mode
        self.observation_space = ObservationSpace()
        self.action_space = ActionSpace()
        self._timeout_s = timeout_s
        self._seen: list[str] = []
        self._loop: LoopThread | None = None
        self._reaper: weakref.finalize[..., Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Begin an episode; without a seed, on a task chosen by the last one."""
        any_options: Any = options
        if any_options is not None and not isinstance(any_options, Mapping):
            raise TypeError(f"options are a dict, such as one with a task, got {any_options!r:.80}")
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31))
        observation, info = self._run(self.env.reset(seed=episode_seed, options=options))
        self._seen = []
        return self._render(observation), _drop_timings(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        any_action: Any = action
        if not isinstance(any_action, str):
            raise TypeError(
                f"an action is a text, words or JSON with tool_calls, got {any_action!r:.80}"
            )
        env_action = action_of(action)
        self._seen.append(f"[assistant] {action}")
        observation, reward, terminated, truncated, info = self._run(self.env.step(env_action))
        return self._render(observation), float(reward), terminated, truncated, _drop_timings(info)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "\n".join(self._seen) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment and its event loop. Idempotent; `reset` opens a new one."""
        if self._loop is None or self._reaper is None:
            return
        try:
            self._run(self.env.close())
        finally:
            self._reaper()
            self._loop, self._reaper = None, None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = LoopThread()
            # For those who never close: the loop ends with the object, at the latest at exit.
            self._reaper = weakref.finalize(self, self._loop.close)
        return self._loop.run(work, timeout_s=self._timeout_s)

    def _render(self, observation: Observation) -> str:
        self._seen += [f"[{message.role}] {message.text}" for message in observation.messages]
        return observation_text(observation)


def synchronous(env_id: str, render_mode: str | None = None, **kwargs: Any) -> SynchronousEnv:
    """Make an agentrl environment for Gymnasium; the entry point of every one shown to it."""
    from agentrl.registry import make

    return SynchronousEnv(make(env_id, **kwargs), render_mode=render_mode)


def show_to_gymnasium(env_id: str) -> None:
    """Put a registered environment into Gymnasium's registry.

    Raises `ConfigError` if the id is another environment there.
    """
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        gymnasium.register(env_id, entry_point=_ENTRY_POINT, kwargs={"env_id": env_id})
    elif spec.entry_point != _ENTRY_POINT:
        raise ConfigError(
            f"{env_id} is already Gymnasium's name for {spec.entry_point}; choose another id"
        )


def _drop_timings(info: Mapping[str, Any]) -> Info:
    results = info.get("tool_results", ())
    tool_results = [{"name": r.name, "status": r.status, "call_id": r.call_id} for r in results]
    return {**info, "tool_results": tool_results} if "tool_results" in info else dict(info)
