"""An environment made of tasks, tools and a reward: what most users need, without a class."""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from agentrl.authoring.env_contract import find_reward_fault
from agentrl.authoring.task_choice import choose_task
from agentrl.authoring.toolset import ToolSet, load_tool, resolve_tools, schemas_of
from agentrl.env import Action, ForkStrategy, Info, Observation, RescoreBy, Step, ToolSchema
from agentrl.errors import ConfigError, EnvError, blame
from agentrl.message import Message
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import run_user_code
from agentrl.task import Split, Task
from agentrl.tool import LateTools, ToolContext, ToolResult, ToolSource

Verdict = float | Mapping[str, float]
"""A reward, or its named parts, whose sum is the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """A reward, and what the step that pays it tells beside it."""

    reward: Verdict
    """The reward, or its named parts."""
    info: Info = field(default_factory=dict[str, Any])
    """Facts for the info of the episode's last step."""


Judged = Verdict | ScoredAnswer
Reward = (
    Callable[[Task, Sequence[Message]], Judged | Awaitable[Judged]]
    | Callable[[Task, Sequence[Message], ToolSet], Judged | Awaitable[Judged]]
)
"""Function of a task and the messages that scores a finished conversation: a number, named parts or
a `ScoredAnswer`. A synchronous one runs in a thread of its own. One that declares a third parameter
is handed the `ToolSet` as the episode left it."""
Tasks = Callable[[Split, int], Iterable[Task]]
"""Function of a split and a seed that yields tasks, finitely or not; equal seeds, equal tasks."""


class ToolEnv:
    """A conversation with tools: calls are answered, and a message without calls is the answer.

    The reward function scores the whole conversation once, at its end; every earlier turn pays 0.
    With `max_turns` the conversation also ends, truncated and scored, after so many messages of the
    agent. Calls of one message run in order. Tasks are put into the split they were asked for.

    Args:
        tasks: Function of a split and a seed that yields tasks.
        reward: Function of a task and the whole conversation that scores it; see
            `register_tool_env`.
        tools: Tools as for `register_tool_env`, or by name: `"module:name"`, and
            `{"source": "module:name", ...}` with arguments.
        system: System message; empty for none.
        answer: Function of a task and the whole conversation that returns the final answer as a
            text, equal for equal answers, or None; `learn.group_reward` lets trajectories vote.
        gold: Function of a task and the messages so far that returns the next action.
        tool_timeout_s: Deadline of every call, open, fork and close of a tool.
        max_turns: Number of messages of the agent after which an episode ends; None sets no end.

    Raises:
        ConfigError: `max_turns` is below 1, or a tool that is given by name cannot be made.
    """

    fork_strategy: ForkStrategy = "native"
    """Forks copy every tool, by its own `fork` where it has one."""

    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there when a gold player was given, so that `isinstance(env, GoldPlayer)` says so."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        reward: Reward,
        tools: Sequence[ToolSource | LateTools | str | Mapping[str, Any]] = (),
        system: str = "",
        answer: Callable[[Task, Sequence[Message]], str | None] | None = None,
        gold: Callable[[Task, Sequence[Message]], Action] | None = None,
        tool_timeout_s: float = 30.0,
        max_turns: int | None = None,
    ) -> None:
        if max_turns is not None and max_turns < 1:
            raise ConfigError(
                f"max_turns must be at least 1, got {max_turns}; use None for no limit"
            )
        self._tasks = tasks
        self._reward = reward
        self._reward_sees_tools = count_required_parameters(reward) > 2
        self._find_answer = answer
        self._max_turns = max_turns
        self._turns = 0
        self._tools = tuple(map(load_tool, tools))
        self._system = system
        self._tool_timeout_s = tool_timeout_s
        self._schemas: tuple[ToolSchema, ...] | None = None
        self._resets = 0
        self._task: Task | None = None
        # Grows in place: a tuple made anew each turn would cost as much as all turns before it.
        self._messages: list[Message] = []
        self._toolbox: ToolSet | None = None
        self._ended = False
        if gold is not None:
            self.gold = gold

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        with blame(EnvError, f"tasks({split!r}, {seed})"):
            for task in self._tasks(split, seed):
                if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise ConfigError(
                        f"tasks({split!r}, {seed}) yielded a {type(task).__name__}; "
                        "yield agentrl.Task(prompt=..., answer=...)"
                    )
                yield task if task.split == split else replace(task, split=split)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode with fresh tools.

        Options: `task`, and `sample` (the index within the group, for `ToolContext`).
        """
        await self._end_episode()
        self._resets += 1
        options = options or {}
        seed = self._resets if seed is None else seed
        task = choose_task(self, seed=seed, options=options)
        sample = int(options.get("sample", 0))
        context = ToolContext(
            task_id=task.id,
            sample=sample,
            seed=derive("tools", seed, task.id, sample),
            data=task.data,
        )
        tools = await resolve_tools(self._tools, timeout_s=self._tool_timeout_s)
        if self._schemas is None:
            self._schemas = schemas_of(tools)
        self._toolbox = await ToolSet.open(tools, context=context, timeout_s=self._tool_timeout_s)
        self._task, self._ended, self._turns = task, False, 0
        system = (Message("system", self._system),) if self._system else ()
        self._messages = [*system, *task.messages]
        return Observation(tuple(self._messages), tools=self._schemas), {}

    async def step(self, action: Action) -> Step:
        task, toolbox = self._require_running()
        self._messages.append(action.message)
        self._turns += 1
        if not (action.tool_calls or action.malformed):
            reward, info = await self._score(task, toolbox)
            self._ended = True
            return Observation(()), reward, True, False, {**info, **self._report_answer(task)}
        step = await self._answer_calls(toolbox, action)
        if self._turns != self._max_turns:
            return step
        reward, info = await self._score(task, toolbox)
        self._ended = True
        return step[0], reward, False, True, {**step[4], **info}

    @property
    def reports_answer(self) -> bool:
        """Whether the last step of an episode reports the final answer."""
        return self._find_answer is not None

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the needs of its tools; see `agentrl.register`."""
        tool_needs = (need for tool in self._tools for need in getattr(tool, "needs", ()))
        return tuple(dict.fromkeys(tool_needs))

    @property
    def rescore_by(self) -> RescoreBy:
        """Method for scoring trajectories again: without tools, if the reward needs none."""
        scores_itself = type(self).step is not ToolEnv.step
        return "replay" if self._reward_sees_tools or scores_itself else "record"

    async def rescore(self, task: Task, messages: Sequence[Message]) -> tuple[float, Info]:
        return await compute_reward(self._reward, task, tuple(messages))

    async def fork(self) -> Self:
        _, toolbox = self._require_running()
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._messages = [*self._messages]
        other._toolbox = None
        other._toolbox = await toolbox.fork()
        return other

    async def close(self) -> None:
        await self._end_episode()

    async def _end_episode(self) -> None:
        toolbox, self._toolbox, self._task = self._toolbox, None, None
        if toolbox is not None:
            await toolbox.close()

    def _require_running(self) -> tuple[Task, ToolSet]:
        if self._task is None or self._toolbox is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if self._ended:
            raise RuntimeError(
                f"the episode of task {self._task.id!r} has ended; await env.reset() for another"
            )
        return self._task, self._toolbox

    async def _answer_calls(self, toolbox: ToolSet, action: Action) -> Step:
        results = refuse_malformed(action)
        for call in action.tool_calls:
            results.append(await toolbox.call(call))
        answers = tuple(result.message for result in results)
        self._messages += answers
        return Observation(answers), 0.0, False, False, {"tool_results": tuple(results)}

    def _report_answer(self, task: Task) -> Info:
        if self._find_answer is None:
            return {}
        with blame(EnvError, f"answer of task {task.id!r}"):
            answer: object = self._find_answer(task, tuple(self._messages))
        if answer is not None and not isinstance(answer, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvError(
                f"the answer of task {task.id!r} is {answer!r:.80}, but an answer must be a text, "
                "or None; fix the function `answer`"
            )
        return {"answer": answer}

    async def _score(self, task: Task, toolbox: ToolSet) -> tuple[float, Info]:
        extra_args = (toolbox,) if self._reward_sees_tools else ()
        return await compute_reward(self._reward, task, tuple(self._messages), *extra_args)


async def compute_reward(
    reward: Callable[..., Judged | Awaitable[Judged]], task: Task, *seen: object
) -> tuple[float, Info]:
    """Return a reward function's result for an episode, and the info of the step that pays it.

    Raises `EnvError` for one that raises, and for a reward that is no finite number.
    """
    with blame(EnvError, f"reward of task {task.id!r}"):
        if inspect.iscoroutinefunction(reward):
            verdict = await reward(task, *seen)
        else:
            verdict = await run_user_code(reward, task, *seen)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        info: Info = {}
        if isinstance(verdict, ScoredAnswer):
            verdict, info = verdict.reward, dict(verdict.info)
        if not isinstance(verdict, Mapping):
            return check_reward(task, read_number(task, verdict)), info
        components = {name: read_number(task, part, name) for name, part in verdict.items()}
        if not components:
            raise EnvError(
                f"the reward of task {task.id!r} is a mapping without a number; return one from "
                "every path of the reward function"
            )
        for name, part in components.items():
            check_reward(task, part, component=name)
        total = check_reward(task, math.fsum(components.values()))
        return total, {**info, "reward_components": components}


def count_required_parameters(function: Callable[..., object]) -> int:
    """Count what must be given by position; a parameter with a default is the author's own."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in kinds and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(function).parameters.values()
    )


def refuse_malformed(action: Action) -> list[ToolResult]:
    """Return the answers to the calls of a message that could not be read."""
    return [
        ToolResult(call_id=f"malformed_{i}", name="", content=error, status="error")
        for i, error in enumerate(action.malformed)
    ]


def check_reward(task: Task, reward: float, *, component: str = "") -> float:
    """Return a reward that can be summed; raise `EnvError` naming the task and the value else."""
    if (fault := find_reward_fault(reward)) is None:
        return reward
    raise EnvError(
        f"{_name_part(component)} of task {task.id!r} is {fault}; fix the reward function for this "
        "task's answer"
    )


def read_number(task: Task, verdict: object, component: str = "") -> float:
    """Return a reward as a number; raise `EnvError` naming the task and the value for text, None
    and whatever else is none.
    """
    try:
        if isinstance(verdict, str | bytes | bytearray):
            raise TypeError  # float() would read it
        if isinstance(verdict, int):
            check_reward(task, verdict, component=component)  # float() has no room for all
        return float(cast("float", verdict))
    except (TypeError, ValueError):
        raise EnvError(
            f"{_name_part(component)} of task {task.id!r} is {verdict!r:.80}; return a number from "
            "every path of the reward function, a mapping of names to numbers, or a ScoredAnswer"
        ) from None


def _name_part(component: str) -> str:
    return f"component {component!r} of the reward" if component else "the reward"
