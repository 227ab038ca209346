"""A second world that is like the first: reset with the same seed, the same actions, compared."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from agentrl.authoring.env_contract import CLOSE_S
from agentrl.env import Env
from agentrl.errors import EnvError, ForkUnsupported, RolloutError, blame
from agentrl.events.history import ActionHistory, fingerprint, step_fingerprint
from agentrl.runtime.threads import await_to_the_end


class ReplayMismatch(ForkUnsupported):
    """The world did not say again what it had said: it is no function of seed and actions."""


async def replay(
    make_env: Callable[[], Env], history: ActionHistory, *, reset_s: float, step_s: float
) -> Env:
    """Return a new environment that has lived through `history`.

    Raises `ReplayMismatch` at the first observation, reward or end that differs, `EnvError` when
    the environment breaks or misses a deadline. A world that fails is closed.
    """
    env = make_env()
    try:
        with blame(EnvError, f"replay of task {history.task.id}"):
            await _relive(env, history, reset_s=reset_s, step_s=step_s)
    except BaseException:
        # What differed counts, or that nobody waits any more, and not that it did not close either.
        with suppress(RolloutError):
            await await_to_the_end(close_world(env))
        raise
    return env


async def close_world(env: Env) -> None:
    """Close an environment that no episode owns, within a deadline. Raises `EnvError`."""
    with blame(EnvError, "close of an unused environment"):
        async with asyncio.timeout(CLOSE_S):
            await env.close()


async def _relive(env: Env, history: ActionHistory, *, reset_s: float, step_s: float) -> None:
    options = {"task": history.task.copy(), "sample": history.sample}
    async with asyncio.timeout(reset_s):
        observation, _ = await env.reset(seed=history.seed, options=options)
    _compare("the first observation", fingerprint(observation), history.opening, history)
    for number, recorded in enumerate(history.steps, 1):
        async with asyncio.timeout(step_s):
            answer = await env.step(recorded.action)
        what = f"the answer to action {number} of {len(history.steps)}"
        _compare(what, step_fingerprint(answer), recorded.answer, history)


def _compare(what: str, found: str, recorded: str, history: ActionHistory) -> None:
    if found != recorded:
        raise ReplayMismatch(
            f"replay of task {history.task.id}: {what} has fingerprint {found}, but {recorded} was "
            "recorded; an environment that is forked by replay must be a deterministic function of "
            "its seed and its actions: fix that, or declare another fork_strategy"
        )
