"""Gymnasium environments as agentrl environments, told in words.

`agentrl.make("gymnasium:FrozenLake-v1")` is the short way. Text spaces are passed through;
`Discrete`, `MultiDiscrete` and tuples of them are told as text. The other direction is
`agentrl.gym.synchronous`.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, cast

import gymnasium

from agentrl.authoring.task_choice import choose_task, seed_tasks
from agentrl.authoring.tool_env import check_reward
from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, ForkUnsupported
from agentrl.gym.space_words import action_words, check_words, read_action, state_words
from agentrl.gym.toy_text import WORDINGS, ToyTextWording
from agentrl.message import Message
from agentrl.rewards import answers
from agentrl.runtime.imports import import_callable, import_named, import_object
from agentrl.runtime.threads import CallThread
from agentrl.task import Split, Task

GymEnv = gymnasium.Env[Any, Any]
Describe = Callable[[Any, Any], str]


class GymnasiumTextEnv:
    """One Gymnasium environment; a task is a seed of its `reset`.

    An action is the whole message, or what it marks as its answer (`Answer: left`). One that is no
    action of the environment is answered with the list of them: it costs nothing, and no time
    passes. Rewards, termination and truncation are the environment's own.

    An environment lives on one thread, from its making to its close: what belongs to a thread
    (synchronous Playwright, sqlite3) works.
    """

    fork_strategy: ForkStrategy = "copy"

    def __init__(
        self,
        id: str | Callable[[], GymEnv],
        *,
        instructions: str = "",
        actions: Sequence[str] = (),
        describe: Describe | None = None,
        **kwargs: Any,
    ) -> None:
        """`id` is Gymnasium's, with the `kwargs` of its `make`, or a function that makes one.

        `module:Name-v0` imports `module`, which registers it; `module:Class` needs no registration.

        `instructions` (the rules), `actions` (the names of actions 0, 1, ...) and `describe` (from
        the unwrapped environment and an observation to text) replace the ones that are known for
        Gymnasium's toy-text environments.
        """
        self._id = id
        self._make = partial(_find_factory(id) if isinstance(id, str) else id, **kwargs)
        self._instructions = instructions
        self._actions = tuple(actions)
        self._describe = describe
        self._live: _LiveEnv | None = None
        self._resets = 0
        self._task: Task | None = None

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        name = self._name.removeprefix("gymnasium:")
        return seed_tasks("gymnasium", name, split, seed=seed, prompt=self._prompt())

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin the episode of a task; the first state is the end of its user message."""
        await self.close()
        self._resets += 1
        task = choose_task(self, seed=self._resets if seed is None else seed, options=options or {})
        live = self._live = _LiveEnv(self._name)
        state_text, info = await live.thread.call(self._begin, live, task.seed)
        self._task = task
        *before, last = task.messages
        opening = Message(last.role, f"{last.text}\n\n{state_text}")
        return Observation((*before, opening), tools=()), info

    async def step(self, action: Action) -> Step:
        live, task = self._live, self._task
        if live is None or task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        step = await live.thread.call(self._answer, live.env, task, action)
        if step[2] or step[3]:
            self._task = None
        return step

    async def fork(self) -> Self:
        """Return a copy that holds a deep copy of the Gymnasium environment.

        It is made on the environment's own thread, and lives on another one.
        """
        other = copy.copy(self)
        if self._live is not None:
            try:
                env = await self._live.thread.call(copy.deepcopy, self._live.env)
            except (TypeError, copy.Error) as error:
                raise ForkUnsupported(f"{self._name} cannot be deep-copied: {error}") from error
            other._live = _LiveEnv(self._name, env)
        return other

    async def close(self) -> None:
        live, self._live, self._task = self._live, None, None
        if live is not None:
            await live.thread.end(live.close)

    @property
    def _name(self) -> str:
        return f"gymnasium:{self._id if isinstance(self._id, str) else self._id.__qualname__}"

    def _begin(self, live: "_LiveEnv", seed: int) -> tuple[str, Info]:
        """Make the environment and begin its episode; on its thread, as all that follows."""
        env = live.env = self._make()
        state, info = env.reset(seed=seed)
        return self._describe_state(env, state), dict(info)

    def _answer(self, env: GymEnv, task: Task, action: Action) -> Step:
        if action.tool_calls or action.malformed:
            return self._refuse(env, action, "There are no tools here.")
        env_action = self._read(env, action)
        if env_action is None:
            return self._refuse(env, action, f"{action.text[:80]!r} is not a valid action.")
        state, paid, terminated, truncated, info = env.step(env_action)
        observation = Observation((Message("user", self._describe_state(env, state)),))
        reward = check_reward(task, float(paid))
        return observation, reward, bool(terminated), bool(truncated), dict(info)

    def _prompt(self) -> str:
        # Not on the thread of an event loop, where synchronous Playwright refuses to start.
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(self._read_prompt).result()

    def _read_prompt(self) -> str:
        env = self._make()
        try:
            check_words(env.action_space, what="actions")
            if self._describe is None and self._wording(env) is None:
                check_words(env.observation_space, what="observations")
            how = action_words(env.action_space, self._names(env))
            rules = self._instructions or getattr(self._wording(env), "rules", "")
            return "\n".join(filter(None, (rules, how))) or "Answer."
        finally:
            env.close()

    def _wording(self, env: GymEnv) -> ToyTextWording | None:
        return WORDINGS.get(type(env.unwrapped).__name__)

    def _names(self, env: GymEnv) -> tuple[str, ...]:
        return self._actions or getattr(self._wording(env), "actions", ())

    def _describe_state(self, env: GymEnv, state: Any) -> str:
        if self._describe is not None:
            return self._describe(env.unwrapped, state)
        if (wording := self._wording(env)) is not None:
            return wording.describe(env.unwrapped, state)
        drawn = [_strip_colours(str(env.render()))] if env.render_mode == "ansi" else []
        return "\n".join((*drawn, state_words(env.observation_space, state)))

    def _read(self, env: GymEnv, action: Action) -> Any | None:
        # A marked answer goes before the whole text.
        for text in answers([action.message])[::-1]:
            env_action = read_action(env.action_space, self._names(env), text)
            if env_action is not None:
                return env_action
        return None

    def _refuse(self, env: GymEnv, action: Action, why: str) -> Step:
        how = action_words(env.action_space, self._names(env))
        text = " ".join(filter(None, (why, how)))
        messages = [
            Message("tool", text, tool_call_id=c.id, name=c.name) for c in action.tool_calls
        ]
        return Observation(tuple(messages) or (Message("user", text),)), 0.0, False, False, {}


class _LiveEnv:
    """One Gymnasium environment and the thread it lives on."""

    def __init__(self, name: str, env: Any = None) -> None:
        self.thread = CallThread(name)
        self.env = env
        """None until it is made."""

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def _find_factory(id: str) -> Callable[..., GymEnv]:
    module, colon, name = id.rpartition(":")
    if colon:
        import_named(module, f"gymnasium:{id}")
        if name.isidentifier() and name not in gymnasium.registry:
            return cast(Callable[..., GymEnv], import_callable(id))
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        hint = "" if colon else f" Or name the module that registers it: gymnasium:MODULE:{id}"
        raise ConfigError(f"gymnasium:{id}: {error}{hint}") from error
    return partial(gymnasium.make, name)


def _strip_colours(drawing: str) -> str:
    bracketed = re.sub(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", r"[\1]", drawing)
    return re.sub(r"\x1b\[[0-9;]*m", "", bracketed).strip("\n")


def is_gymnasium(what: str) -> bool:
    """Return whether this is an id of Gymnasium's, or `module:Class` of an environment of its."""
    if ":" not in what:
        return what in gymnasium.registry and "/" not in what
    target = import_object(what) if what.count(":") == 1 and "/" not in what else None
    return isinstance(target, type) and issubclass(target, gymnasium.Env)
