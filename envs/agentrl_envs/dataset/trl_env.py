"""Classes made for TRL's `environment_factory`, as environments.

The public methods of an instance are the tools, `reset(**row)` begins an episode, and
`get_reward()` may pay it. As in TRL an exception of a tool is its answer, `{'error': ...}`, what a
tool returns is shown as `str` makes it, and what `reset` returns is put behind the last message of
the prompt. What is no exception, such as `sys.exit`, fails the trajectory.
"""

import copy
import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from agentrl.authoring.task_choice import choose_task
from agentrl.authoring.tool_env import (
    check_reward,
    compute_reward,
    read_number,
    refuse_malformed,
)
from agentrl.authoring.tool_schema import ToolSignature, signature_of
from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, blame
from agentrl.message import Content, Image, Message, ToolCall
from agentrl.runtime.argument_types import type_arguments
from agentrl.runtime.imports import import_callable
from agentrl.runtime.threads import CallThread, FunctionExit
from agentrl.task import Split, Task
from agentrl.tool import ToolResult, tool
from agentrl_envs.dataset.env import Gold, find_gold
from agentrl_envs.dataset.reward_sum import (
    RewardName,
    RewardSum,
    build_rewards,
    compares_answers,
)
from agentrl_envs.dataset.row_tasks import DataSource, TaskColumns, load_tasks, order_tasks
from agentrl_envs.dataset.settings import DATASET_RULES, check_settings

HOOKS = ("reset", "get_reward")
"""Public methods that are no tools."""
NOT_RUNNING = "no episode is running; await env.reset() first"


class TrlEnv:
    """Episodes of a class made for TRL, on the rows of a data set; docs/datasets.md.

    An instance lives on one thread. Every episode has one of its own, unless `reuse` says that it
    is reset again, as TRL does. The conversation ends with a message that calls no tool.
    """

    fork_strategy: ForkStrategy = "copy"
    """A fork holds a deep copy of the instance."""

    gold: Gold
    """Only there when a gold player was given."""

    def __init__(
        self,
        *,
        factory: str | Callable[[], object],
        path: str | Mapping[str, str],
        prompt: str = "prompt",
        answer: str | None = None,
        reward: RewardName | Sequence[RewardName] | None = None,
        reuse: bool = False,
        subset: str | None = None,
        split: str | Mapping[str, str] | None = None,
        split_column: str = "split",
        heldout_fraction: float = 0.1,
        system: str = "",
        gold: str | Gold | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Read the rows and the methods; a factory that is no class is called once for that.

        Args:
            factory: A callable without arguments, or `module:Class`.
            path: As in `DatasetEnv`, and so are the arguments that it has as well.
            prompt: As in `DatasetEnv`.
            answer: As in `DatasetEnv`.
            reward: Rewards beside `get_reward`, which has the weight 1; None for no others.
            reuse: Whether an instance is reset for the next episode.
            subset: As in `DatasetEnv`.
            split: As in `DatasetEnv`.
            split_column: As in `DatasetEnv`.
            heldout_fraction: As in `DatasetEnv`.
            system: As in `DatasetEnv`.
            gold: As in `DatasetEnv`.
            max_turns: As in `DatasetEnv`.
        """
        check_settings(locals(), DATASET_RULES, of="the data set")
        self._factory = import_callable(factory) if isinstance(factory, str) else factory
        kind = self._factory if isinstance(self._factory, type) else type(self._factory())
        self._signatures = read_methods(kind)
        self._pays = callable(getattr(kind, "get_reward", None))
        self._name = kind.__name__
        self._reward_names = reward
        self._rewards = _build_rewards(reward)
        if reward is None and not self._pays:
            raise ConfigError(
                f"{self._name} has no get_reward(), and there is no `reward`: nothing would be "
                "paid; add one of them, such as reward: trl:module:function"
            )
        if self._pays and self._name in self._rewards.labels:
            raise ConfigError(
                f"a reward is called {self._name!r}, as what get_reward() of {self._name} pays is; "
                "give it a `label` of its own"
            )
        if self._rewards.sees_tools:
            raise ConfigError(
                "a reward function of three parameters reads the tools of a ToolEnv, which "
                f"{self._name} has none of; take `environments` in a function of TRL's signature"
            )
        compares = reward is not None and compares_answers(reward)
        source = DataSource(
            path=path,
            subset=subset,
            split=split,
            split_column=split_column,
            heldout_fraction=heldout_fraction,
        )
        columns = TaskColumns(
            prompt=prompt, answer=answer, needs_answer=compares, has_system=bool(system)
        )
        tasks = load_tasks(source, columns)
        row = tasks["train"][0].data["row"]
        _check_reset(kind, row)
        self._rewards.check_columns(row, has_environment=True)
        self._tasks = order_tasks(tasks)
        self._reuse = reuse
        self._system = system
        self._max_turns = max_turns
        self._resets = 0
        self._live: _LiveInstance | None = None
        self._episode: _TrlEpisode | None = None
        if (player := find_gold(gold, compares=False)) is not None:
            self.gold = player

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the rows of a split as tasks, in an order that the seed decides."""
        return self._tasks(split, seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode: the instance is reset with the row."""
        self._episode = None
        if not self._reuse:
            await self._end_instance()
        self._resets += 1
        task = choose_task(self, seed=self._resets if seed is None else seed, options=options or {})
        live = self._live = self._live or _LiveInstance(self._name)
        if live.instance is None:
            live.instance = await live.thread.call(self._factory)
        row = copy.deepcopy(cast("Mapping[str, Any]", task.data["row"]))
        with blame(EnvError, f"{self._name}.reset"):
            observed = await live.call(live.instance.reset, row)
            messages = append_content(task.messages, read_content(observed))
        system = (Message("system", self._system),) if self._system else ()
        self._episode = _TrlEpisode(task, (*system, *messages))
        schemas = tuple(signature.schema for signature in self._signatures.values())
        return Observation(self._episode.messages, tools=schemas), {}

    async def step(self, action: Action) -> Step:
        live, episode = self._live, self._episode
        if live is None or episode is None:
            raise RuntimeError(NOT_RUNNING)
        episode.messages = (*episode.messages, action.message)
        episode.turns += 1
        if not (action.tool_calls or action.malformed):
            return await self._end_episode(live, episode, Observation(()), {}, is_truncated=False)
        results = refuse_malformed(action)
        for call in action.tool_calls:
            results.append(await self._answer(live, call))
        answers = tuple(result.message for result in results)
        episode.messages = (*episode.messages, *answers)
        info: Info = {"tool_results": tuple(results)}
        if episode.turns == self._max_turns:
            return await self._end_episode(
                live, episode, Observation(answers), info, is_truncated=True
            )
        return Observation(answers), 0.0, False, False, info

    async def fork(self) -> Self:
        """Return a copy with a deep copy of the instance, on a thread of its own."""
        if self._live is None or self._episode is None:
            raise RuntimeError(NOT_RUNNING)
        other = copy.copy(self)
        other._rewards = _build_rewards(self._reward_names)
        other._live = _LiveInstance(self._name)
        other._episode = replace(self._episode)
        try:
            other._live.instance = await self._live.thread.call(copy.deepcopy, self._live.instance)
        except (TypeError, copy.Error) as error:
            await other.close()
            raise ForkUnsupported(f"{self._name} cannot be deep-copied: {error}") from error
        return other

    async def close(self) -> None:
        self._episode = None
        try:
            await self._end_instance()
        finally:
            await self._rewards.close()

    async def _end_instance(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.thread.end(live.forget)

    async def _answer(self, live: "_LiveInstance", call: ToolCall) -> ToolResult:
        content: Content
        try:
            if call.name not in self._signatures:
                raise ValueError(f"Tool {call.name} not found.")
            parameters = self._signatures[call.name].schema["function"]["parameters"]
            arguments = type_arguments(call.arguments, parameters)
            with blame(EnvError, f"tool {call.name!r}"):
                value = await live.call(getattr(live.instance, call.name), arguments)
            content = read_content(value)
        except (EnvError, ValueError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, FunctionExit) or not isinstance(cause, Exception):
                raise
            content = str({"error": str(cause)})
            return ToolResult(call_id=call.id, name=call.name, content=content, status="error")
        return ToolResult(call_id=call.id, name=call.name, content=content, status="ok")

    async def _end_episode(
        self,
        live: "_LiveInstance",
        episode: "_TrlEpisode",
        observation: Observation,
        info: Info,
        *,
        is_truncated: bool,
    ) -> Step:
        own_reward = None
        task = episode.task
        if self._pays:
            with blame(EnvError, f"{self._name}.get_reward"):
                paid = await live.call(live.instance.get_reward, {})
                own_reward = self._name, check_reward(task, read_number(task, paid))

        async def score(task: Task, messages: Sequence[Message]) -> Any:
            return await self._rewards.score_all(
                task, messages, environments=[live.instance], own_reward=own_reward
            )

        reward, scored = await compute_reward(score, task, episode.messages)
        self._episode = None
        return observation, reward, not is_truncated, is_truncated, {**info, **scored}


@dataclass(slots=True)
class _TrlEpisode:
    task: Task
    messages: tuple[Message, ...]
    turns: int = 0


class _LiveInstance:
    """One instance and the thread it lives on."""

    def __init__(self, name: str) -> None:
        self.thread = CallThread(name)
        self.instance: Any = None

    async def call(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a method and return its value; an asynchronous one runs on the loop."""
        if inspect.iscoroutinefunction(method):
            return await method(**arguments)
        value = await self.thread.call(method, **arguments)
        return await value if inspect.isawaitable(value) else value

    def forget(self) -> None:
        """Drop the instance, on its thread."""
        self.instance = None


def read_methods(kind: type) -> Mapping[str, ToolSignature]:
    """Return the tools of a class by name.

    Raises `ConfigError` that names a method without types or docstring, or what else TRL asks for.
    """
    functions = {
        # Those of the class itself are bound to it already.
        name: getattr(member, "__func__", member)
        for name, member in inspect.getmembers(kind, predicate=inspect.isroutine)
        if inspect.isfunction(member) or inspect.ismethod(member)
    }
    if "reset" not in functions:
        raise ConfigError(
            f"{kind.__name__} has no method reset(**row), so it is not made for TRL's "
            "environment_factory; name an agentrl.Env as module:Class, and one of Gymnasium's as "
            "gymnasium:module:Class"
        )
    signatures: dict[str, ToolSignature] = {}
    for name, function in functions.items():
        if name in HOOKS or name.startswith("_"):
            continue
        signatures[name] = signature_of(tool(function))
        _ = signatures[name].schema
    return signatures


def _check_reset(kind: type, row: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a `reset` that cannot be called with the columns of a row."""
    reset = cast("Any", kind).reset
    signature, instance = inspect.signature(reset), () if inspect.ismethod(reset) else (None,)
    try:
        signature.bind(*instance, **row)
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__}.reset{signature} cannot be called with the columns of a row "
            f"({', '.join(row)}), as TRL does: {error}; end its parameters with **kwargs, and "
            "take columns that there are"
        ) from error


def append_content(messages: tuple[Message, ...], content: Content) -> tuple[Message, ...]:
    """Return the messages with something put behind the content of the last one."""
    if not content:
        return messages
    *before, last = messages
    if isinstance(last.content, str) and isinstance(content, str):
        return (*before, replace(last, content=last.content + content))
    parts = [
        part
        for each in (last.content, content)
        for part in ((each,) if isinstance(each, str) else each)
    ]
    return (*before, replace(last, content=tuple(filter(None, parts))))


def read_content(value: Any) -> Content:
    """Return the value of `reset` or a tool as the model reads it.

    None is nothing, a list of content blocks is text and images, anything else its `str`. Raises
    `ValueError` for a block that is neither text nor image.
    """
    if value is None or isinstance(value, str):
        return value or ""
    blocks = cast("list[Any]", value) if isinstance(value, list) else []
    if not blocks or not all(isinstance(b, Mapping) and "type" in b for b in blocks):
        return str(value)
    parts = tuple(_read_block(cast("Mapping[str, Any]", block)) for block in blocks)
    if any(isinstance(part, Image) for part in parts):
        return parts
    return "".join(cast("tuple[str, ...]", parts))


def _read_block(block: Mapping[str, Any]) -> str | Image:
    if block["type"] == "text":
        return str(block["text"])
    picture = block.get("image")
    if block["type"] == "image" and callable(getattr(picture, "save", None)):
        data = io.BytesIO()
        cast("Any", picture).save(data, format="PNG")
        return Image(data.getvalue())
    raise ValueError(f"a content block is {block!r:.80}; give text, or image with a PIL image")


def _build_rewards(given: RewardName | Sequence[RewardName] | None) -> RewardSum:
    return RewardSum([]) if given is None else build_rewards(given)
