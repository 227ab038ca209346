"""A second world that is like the first: reset with the same seed, the same actions, compared."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from agentrl.env import Action, Env, Observation, Step, TurnRequest
from agentrl.errors import EnvError, ForkUnsupported, RolloutError, blame
from agentrl.message import Image, Message
from agentrl.runtime.threads import to_the_end
from agentrl.task import Task

CLOSE_S = 10.0


class ReplayMismatch(ForkUnsupported):
    """The world did not say again what it had said: it is no function of seed and actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One action, and the fingerprint of what answered it."""

    action: Action
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionHistory:
    """Everything an environment saw since its reset, and fingerprints of what it said."""

    task: Task
    sample: int
    seed: int
    opening: str
    """Fingerprint of the first observation."""
    steps: tuple[RecordedStep, ...] = ()

    @classmethod
    def begun(
        cls, task: Task, *, sample: int, seed: int, observation: Observation
    ) -> "ActionHistory":
        """Return the history of an environment that has just been reset."""
        return cls(task=task, sample=sample, seed=seed, opening=fingerprint(observation))

    def after(self, action: Action, answer: Step) -> "ActionHistory":
        """Return the history with one more step."""
        recorded = RecordedStep(action=action, answer=step_fingerprint(answer))
        return replace(self, steps=(*self.steps, recorded))


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
            await to_the_end(close_world(env))
        raise
    return env


async def close_world(env: Env) -> None:
    """Close an environment that no episode owns, within a deadline. Raises `EnvError`."""
    with blame(EnvError, "close of an unused environment"):
        async with asyncio.timeout(CLOSE_S):
            await env.close()


def fingerprint(observation: Observation) -> str:
    """Return 16 hex digits of what an observation shows."""
    return _digest([_shown(observation)])


def step_fingerprint(answer: Step) -> str:
    """Return 16 hex digits of an answer; its info, which may hold times, is left out."""
    observation, reward, terminated, truncated, _ = answer
    return _digest([_shown(observation), reward, terminated, truncated])


async def _relive(env: Env, history: ActionHistory, *, reset_s: float, step_s: float) -> None:
    options = {"task": history.task, "sample": history.sample}
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


def _shown(observation: Observation) -> list[object]:
    tools = observation.tools
    return [
        [_message(message) for message in observation.messages],
        None if tools is None else [dict(tool) for tool in tools],
        *([True] if observation.anew else []),
        *([{"after": observation.after}] if observation.after is not None else []),
        *([_request(observation.request)] if observation.request is not None else []),
    ]


def _request(request: TurnRequest) -> list[object]:
    rule = [] if request.calls == "auto" else [request.calls, request.tool]
    return [request.max_tokens, request.stop, *rule]


def _message(message: Message) -> list[object]:
    content = (message.content,) if isinstance(message.content, str) else message.content
    return [
        message.role,
        [{"image": part.digest} if isinstance(part, Image) else part for part in content],
        [[call.id, call.name, dict(call.arguments)] for call in message.tool_calls],
        message.tool_call_id,
        message.name,
    ]


def _digest(shown: object) -> str:
    blob = json.dumps(shown, sort_keys=True, default=_plain)
    return hashlib.sha256(blob.encode(errors="surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
