"""Gymnasium environments as agentrl environments, told in words.

`agentrl.make("gymnasium:FrozenLake-v1")` is the short way. Text spaces are passed through;
`Discrete`, `MultiDiscrete` and tuples of them are told as text. The other direction is
`agentrl.gym.synchronous`.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

import gymnasium

from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, ForkUnsupported
from agentrl.gym.space_words import action_words, check_words, read_action, state_words
from agentrl.gym.toy_text import WORDINGS, Wording
from agentrl.message import Message
from agentrl.registry import import_named, load
from agentrl.rewards import answers
from agentrl.seed_tasks import seed_tasks
from agentrl.task import Split, Task
from agentrl.task_choice import choose_task
from agentrl.thread import in_thread
from agentrl.tool_env import checked_reward

GymEnv = gymnasium.Env[Any, Any]
Describe = Callable[[Any, Any], str]


class GymnasiumTextEnv:
    """One Gymnasium environment; a task is a seed of its `reset`.

    An action is the whole message, or what it marks as its answer (`Answer: left`). One that is no
    action of the environment is answered with the list of them: it costs nothing, and no time
    passes. Rewards, termination and truncation are the environment's own.
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
        self._maker = _maker(id) if isinstance(id, str) else id
        self._kwargs = kwargs
        self._instructions = instructions
        self._actions = tuple(actions)
        self._describe = describe
        self._env: GymEnv | None = None
        self._resets = 0
        self._task: Task | None = None

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless seeds as tasks; a seed's own number decides its split."""
        name = self._id if isinstance(self._id, str) else self._id.__qualname__
        return seed_tasks("gymnasium", name, split, seed=seed, prompt=self._prompt())

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin the episode of a task; the first state is the end of its user message."""
        await self.close()
        self._resets += 1
        task = choose_task(self, seed=self._resets if seed is None else seed, options=options or {})
        env = self._env = await in_thread(self._made)
        state, info = await in_thread(env.reset, seed=task.seed)
        self._task = task
        *before, last = task.messages
        opening = Message(last.role, f"{last.text}\n\n{self._told(env, state)}")
        return Observation((*before, opening), tools=()), dict(info)

    async def step(self, action: Action) -> Step:
        """Do one action."""
        if self._env is None or self._task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if action.tool_calls or action.malformed:
            return self._refused(self._env, action, "There are no tools here.")
        taken = self._read(self._env, action)
        if taken is None:
            return self._refused(self._env, action, f"{action.text[:80]!r} is no action.")
        state, paid, terminated, truncated, info = await in_thread(self._env.step, taken)
        reward = checked_reward(self._task, float(paid))
        told = Observation((Message("user", self._told(self._env, state)),))
        if terminated or truncated:
            self._task = None
        return told, reward, bool(terminated), bool(truncated), dict(info)

    async def fork(self) -> Self:
        """Return a copy that holds a deep copy of the Gymnasium environment."""
        other = copy.copy(self)
        try:
            other._env = copy.deepcopy(self._env)
        except (TypeError, copy.Error) as error:
            raise ForkUnsupported(f"gymnasium:{self._id} cannot be deep-copied: {error}") from error
        return other

    async def close(self) -> None:
        """Close the Gymnasium environment."""
        env, self._env, self._task = self._env, None, None
        if env is not None:
            await in_thread(env.close)

    def _made(self) -> GymEnv:
        return self._maker(**self._kwargs)

    def _prompt(self) -> str:
        env = self._made()
        try:
            check_words(env.action_space, what="actions")
            if self._describe is None and self._wording(env) is None:
                check_words(env.observation_space, what="observations")
            how = action_words(env.action_space, self._names(env))
            rules = self._instructions or getattr(self._wording(env), "rules", "")
            return "\n".join(filter(None, (rules, how))) or "Answer."
        finally:
            env.close()

    def _wording(self, env: GymEnv) -> Wording | None:
        return WORDINGS.get(type(env.unwrapped).__name__)

    def _names(self, env: GymEnv) -> tuple[str, ...]:
        return self._actions or getattr(self._wording(env), "actions", ())

    def _told(self, env: GymEnv, state: Any) -> str:
        if self._describe is not None:
            return self._describe(env.unwrapped, state)
        if (wording := self._wording(env)) is not None:
            return wording.describe(env.unwrapped, state)
        drawn = [_plain(str(env.render()))] if env.render_mode == "ansi" else []
        return "\n".join((*drawn, state_words(env.observation_space, state)))

    def _read(self, env: GymEnv, action: Action) -> Any | None:
        # A marked answer goes before the whole text.
        for text in answers([action.message])[::-1]:
            taken = read_action(env.action_space, self._names(env), text)
            if taken is not None:
                return taken
        return None

    def _refused(self, env: GymEnv, action: Action, why: str) -> Step:
        how = action_words(env.action_space, self._names(env))
        told = " ".join(filter(None, (why, how)))
        messages = [
            Message("tool", told, tool_call_id=c.id, name=c.name) for c in action.tool_calls
        ]
        return Observation(tuple(messages) or (Message("user", told),)), 0.0, False, False, {}


def _maker(id: str) -> Callable[..., GymEnv]:
    """Return what makes the environment that a text names. Raises `ConfigError`."""
    module, colon, name = id.rpartition(":")
    if colon:
        import_named(module, f"gymnasium:{id}")
        if name.isidentifier() and name not in gymnasium.registry:
            return cast(Callable[..., GymEnv], load(id))
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        hint = "" if colon else f" Or name the module that registers it: gymnasium:MODULE:{id}"
        raise ConfigError(f"gymnasium:{id}: {error}{hint}") from error
    return partial(gymnasium.make, name)


def _plain(drawing: str) -> str:
    """Return a terminal drawing without colours; what was coloured stands in brackets."""
    bracketed = re.sub(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", r"[\1]", drawing)
    return re.sub(r"\x1b\[[0-9;]*m", "", bracketed).strip("\n")
