"""Gymnasium environments as agentrl environments, told in words.

`agentrl.make("gymnasium:FrozenLake-v1")` is the short way. Text spaces are passed through;
`Discrete`, `MultiDiscrete` and tuples of them are told as text, and anything else by functions that
the config names. The other direction is `agentrl.gym.synchronous`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

import gymnasium

from agentrl.authoring.env_contract import find_component_fault, find_component_type_fault
from agentrl.authoring.task_choice import choose_task, seed_tasks
from agentrl.authoring.tool_env import check_reward
from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, WordingError
from agentrl.gym.wording.episode import GivenWords, GymEnv, WordedEnv
from agentrl.gym.wording.parts import Part, WordingFault
from agentrl.message import Image, Message
from agentrl.rewards import answers, drop_thoughts
from agentrl.runtime.imports import import_callable, import_named
from agentrl.runtime.threads import CallThread, call_within, list_stuck_threads
from agentrl.task import Split, Task

STUCK_MAX = 64
"""Threads that may stand still in an abandoned call before no more environments are made."""
STUCK_S = 10.0
"""Time after which an abandoned call counts as standing still."""
LOAD_S = 120.0
"""Time in which an environment has to be made, to see how it is told."""
_COPY_ERRORS = (AttributeError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of `copy.deepcopy` for what cannot be copied."""
_MAKE_ERRORS = (*_COPY_ERRORS, AssertionError, ImportError, LookupError)
"""Errors of an environment that cannot be made with its arguments, or on this machine."""


class GymnasiumTextEnv:
    """One Gymnasium environment; a task is a seed of its `reset`.

    An action is the whole message, or what it marks as its answer (`Answer: left`). One that is no
    action of the environment is answered with the list of them: it costs nothing, and no time
    passes. Rewards, termination and truncation are the environment's own.

    An environment lives on one thread, from its making to its close: what belongs to a thread
    (synchronous Playwright, sqlite3) works. A call that misses its deadline leaves its thread to
    itself, and the environment is closed there when the call ends.
    """

    fork_strategy: ForkStrategy = "copy"

    def __init__(
        self,
        id: str | Callable[[], GymEnv],
        *,
        instructions: str = "",
        actions: Sequence[str] = (),
        describe: str | Callable[..., Any] | None = None,
        act: str | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`id` is Gymnasium's, with the `kwargs` of its `make`, or a function that makes one.

        `module:Name-v0` imports `module`, which registers it; `module:Class` needs no registration.

        The words replace the ones that are known for Gymnasium's toy-text environments and
        BrowserGym.

        Args:
            id: As above.
            instructions: The rules, which begin every prompt.
            actions: The names of actions 0, 1, ...
            describe: Function, or `module:function`, from an observation to a text, or to a list of
                texts and images. With a second and third parameter it is handed the `info` and the
                unwrapped environment too.
            act: Function, or `module:function`, from the text of a message to an action. With a
                second parameter it is handed the unwrapped environment too. None is no action, and
                the text of a `ValueError` is told to the agent.
            kwargs: Arguments of the environment.

        Raises:
            ConfigError: There is no such environment or function.
        """
        self._id = id
        factory = _find_factory(id) if isinstance(id, str) else id
        self._make = cast("Callable[[], GymEnv]", partial(factory, **kwargs))
        self._given = GivenWords(
            instructions=instructions,
            actions=actions,
            describe=import_callable(describe) if isinstance(describe, str) else describe,
            act=import_callable(act) if isinstance(act, str) else act,
        )
        try:
            self._given.check()
        except ValueError as error:
            raise ConfigError(f"{self._name}: {error}") from error
        self._live: _LiveEnv | None = None
        self._resets = 0
        self._task: Task | None = None

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        name = self._name.removeprefix("gymnasium:")
        return seed_tasks("gymnasium", name, split, seed=seed, prompt=self._build_prompt())

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin the episode of a task; the first state is the end of its user message."""
        await self.close()
        self._resets += 1
        task = choose_task(self, seed=self._resets if seed is None else seed, options=options or {})
        live = self._live = _LiveEnv(self._name)
        parts, info = await live.call(self._begin, live, task.seed)
        self._task = task
        return build_opening(task, _decode_parts(parts)), info

    async def step(self, action: Action) -> Step:
        live, task = self._live, self._task
        if live is None or task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if action.tool_calls or action.malformed:
            refusal = await live.call(live.worded.refuse, "There are no tools here.")
            return refuse_action(action, refusal)
        step = await live.call(live.worded.step, *list_texts(action))
        if isinstance(step, str):
            return refuse_action(action, step)
        if step.terminated or step.truncated:
            self._task = None
        content = _decode_parts(step.parts)
        return build_step(task, content, step.reward, step.terminated, step.truncated, step.info)

    async def fork(self) -> Self:
        """Return a copy that holds a deep copy of the Gymnasium environment.

        It is made on the environment's own thread, and lives on another one.
        """
        other = copy.copy(self)
        if self._live is not None:
            try:
                env = await self._live.call(copy.deepcopy, self._live.worded.env)
            except (*_COPY_ERRORS, copy.Error) as error:
                raise ForkUnsupported(f"{self._name} cannot be deep-copied: {error}") from error
            other._live = _LiveEnv(self._name, WordedEnv(env, self._given))
        return other

    async def close(self) -> None:
        live, self._live, self._task = self._live, None, None
        if live is not None:
            await live.thread.end(live.close)

    @property
    def _name(self) -> str:
        return f"gymnasium:{self._id if isinstance(self._id, str) else self._id.__qualname__}"

    def _begin(self, live: "_LiveEnv", seed: int) -> tuple[Sequence[Part], Info]:
        """Make the environment and begin its episode; on its thread, as all that follows."""
        live.worded = WordedEnv(self._make(), self._given)
        return live.worded.reset(seed)

    def _build_prompt(self) -> str:
        # Not on the thread of an event loop, where synchronous Playwright refuses to start.
        try:
            return call_within(LOAD_S, self._read_prompt)
        except TimeoutError as error:
            raise ConfigError(
                f"{self._name} was not made and closed in {LOAD_S:g} s; find out where it hangs, "
                "and do what takes long in its reset"
            ) from error

    def _read_prompt(self) -> str:
        try:
            env = self._make()
        except ConfigError:
            raise
        except (*_MAKE_ERRORS, gymnasium.error.Error, SystemExit) as error:
            raise ConfigError(
                f"{self._name} cannot be made: {type(error).__name__}: {error}; check env.kwargs"
            ) from error
        try:
            return WordedEnv(env, self._given).build_prompt()
        except ValueError as error:
            raise ConfigError(f"{self._name}: {error}") from error
        finally:
            self._close_unplayed(env)

    def _close_unplayed(self, env: GymEnv) -> None:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{self._name} cannot be closed: {type(error).__name__}: {error}; mend its close"
            ) from error


class _LiveEnv:
    """One Gymnasium environment and the thread it lives on."""

    def __init__(self, name: str, worded: WordedEnv | None = None) -> None:
        """Start the thread; `EnvError` where too many that were abandoned stand still."""
        stuck = len(list_stuck_threads(STUCK_S))
        if stuck >= STUCK_MAX:
            raise EnvError(
                f"{stuck} threads stand still in calls of environments that missed their deadlines "
                f"(the limit is {STUCK_MAX}), so {name} is not made; find out where a call hangs, "
                "or name an interpreter, python=..., to play it in processes that can be ended"
            )
        self.thread = CallThread(name)
        self._worded = worded

    @property
    def worded(self) -> WordedEnv:
        """The environment; there once it is made."""
        assert self._worded is not None
        return self._worded

    @worded.setter
    def worded(self, worded: WordedEnv) -> None:
        self._worded = worded

    async def call(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call on the thread; `WordingError` for a fault of a function of the user's."""
        try:
            return await self.thread.call(function, *args)
        except WordingFault as error:
            raise WordingError(str(error)) from error

    def close(self) -> None:
        if self._worded is not None:
            self._worded.close()


def list_texts(action: Action) -> tuple[str, list[str]]:
    """Return a message without its thoughts, and the texts in it that may be an action: a marked
    answer goes before the whole text."""
    return drop_thoughts(action.text), list(answers([action.message])[::-1])


def build_opening(task: Task, content: Sequence[str | Image]) -> Observation:
    """Return the first observation: the task's messages, and the first state below their last."""
    *before, last = task.messages
    parts = (f"{last.text}\n\n", *content)
    return Observation((*before, Message(last.role, _join_parts(parts))), tools=())


def build_step(
    task: Task,
    content: Sequence[str | Image],
    reward: float,
    terminated: bool,
    truncated: bool,
    info: Info,
) -> Step:
    """Return a step whose reward is checked."""
    observation = Observation((Message("user", _join_parts(content)),))
    return observation, check_reward(task, reward), terminated, truncated, keep_info(info)


def keep_info(info: Info) -> Info:
    """Return an info without what has another meaning here; parts of the reward are finite."""
    entries = {
        name: value
        for name, value in info.items()
        if name not in ("answer", "tool_results", "patch")
    }
    components = entries.get("reward_components", {})
    if find_component_type_fault(components) or find_component_fault(components):
        del entries["reward_components"]
    return entries


def refuse_action(action: Action, why: str) -> Step:
    """Return the answer to what is no action: no time passes."""
    messages = [Message("tool", why, tool_call_id=c.id, name=c.name) for c in action.tool_calls]
    return Observation(tuple(messages) or (Message("user", why),)), 0.0, False, False, {}


def _decode_parts(parts: Sequence[Part]) -> list[str | Image]:
    return [part if isinstance(part, str) else Image(*part) for part in parts]


def _join_parts(parts: Sequence[str | Image]) -> str | tuple[str | Image, ...]:
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else tuple(parts)


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
