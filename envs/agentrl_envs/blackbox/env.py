"""An agent program as an environment: its requests are observations, our actions its answers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agentrl.env import Action, BaseEnv, Info, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, EnvError
from agentrl.gateway.desk import Question
from agentrl.gateway.dialogue import continuation
from agentrl.gateway.server import Gateway, Place
from agentrl.message import Message
from agentrl.registry import load
from agentrl.scope import shared
from agentrl.task import Split, Task
from agentrl.task_choice import choose_task
from agentrl.tool_env import Judged, judged
from agentrl_envs.blackbox.endpoint import Endpoint
from agentrl_envs.blackbox.program import Command, Function, Program

Agent = Callable[[Task, Endpoint], Any]
Score = Callable[[Task, Any], Judged | Awaitable[Judged]]
"""Scores a program's result."""
TaskSource = Callable[[Split, int], Iterable[Task]]

_END_S = 5.0


class BlackBoxEnv(BaseEnv):
    """Runs an agent program for every episode and answers its requests with the policy.

    A turn is one request. A request that tells the conversation so far and adds to it goes on in
    the same context, token by token what was sampled; any other (of a sub-agent, after a history
    was rewritten) begins a context anew. Several at once are answered one after the other. The
    episode ends with the program, and is then scored. One that fails is a failure, never a reward.
    What a request says of sampling (`temperature`, `max_tokens`, `tool_choice`) is not heard: the
    run's config decides how the policy is sampled. Tasks are put into the split they were asked
    for.
    """

    def __init__(
        self,
        *,
        tasks: str | TaskSource,
        score: str | Score,
        agent: str | Agent | None = None,
        command: Sequence[str] | None = None,
        pass_env: Sequence[str] = (),
    ) -> None:
        """Choose a program; nothing is started.

        Args:
            tasks: A function of a split and a seed that yields tasks, or its name,
                `module:function`.
            score: A function of the task and the program's result, or its name.
            agent: The program as a function of the task and an `Endpoint`, or its name; its result
                is what it returns.
            command: The program as words of a command line, in which `{prompt}`, `{task_id}` and
                `{seed}` stand for the task's; its result is what it writes to stdout.
            pass_env: Names of our variables that the command gets.
        """
        if (agent is None) == (command is None):
            raise ConfigError("give either agent (a function) or command (words of a command line)")
        if command is not None and (isinstance(command, str) or not command):
            raise ConfigError(f"command must be a list of words, got {command!r}")
        self._tasks = _found(tasks)
        self._score = _found(score)
        self._program: Program = (
            Function(_found(agent))
            if agent is not None
            else Command(words=tuple(command or ()), pass_env=tuple(pass_env))
        )
        self._own: Gateway | None = None
        self._gateway: Gateway | None = None
        self._place: Place | None = None
        self._running: asyncio.Task[Any] | None = None
        self._task: Task | None = None
        self._question: Question | None = None
        self._tools: tuple[ToolSchema, ...] = ()

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of a split."""
        for task in self._tasks(split, seed):
            yield task if task.split == split else replace(task, split=split)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start the program, and return what it asks first.

        Raises `EnvError` for a program that ends without asking anything.
        """
        await self.close()
        self._task = choose_task(self, seed=seed or 0, options=options or {})
        gateway = await self._opened()
        self._place = gateway.place()
        self._running = asyncio.create_task(
            self._program.run(self._task, Endpoint.of(self._place)), name="agentrl-program"
        )
        if not await self._asked():
            self._running.result()
            raise EnvError("the program ended without asking the policy anything")
        question = cast("Question", self._question)
        self._tools = question.asked.tools
        return Observation(question.asked.messages, tools=self._tools), {}

    async def step(self, action: Action) -> Step:
        """Answer the program, and return what it asks next, or how it was scored."""
        if self._question is None or self._running is None or self._task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        before, self._question = self._question, None
        said = _named_calls(action, before)
        before.answer(said)
        if await self._asked():
            return self._observed(before, said), 0.0, False, False, {}
        reward, info = await judged(self._score, self._task, self._running.result())
        return Observation(()), reward, True, False, info

    async def close(self) -> None:
        """End the program. Idempotent."""
        running, self._running = self._running, None
        place, self._place = self._place, None
        own, self._own = self._own, None
        self._question = self._task = None
        try:
            if self._gateway is not None and place is not None:
                self._gateway.free(place)
            if running is not None:
                running.cancel()
                await asyncio.wait([running], timeout=_END_S)
                if running.done() and not running.cancelled():
                    running.exception()  # what it says of its own end is nobody's business
        finally:
            self._gateway = None
            if own is not None:
                await own.close()

    async def _opened(self) -> Gateway:
        self._gateway = await shared("agentrl.gateway", Gateway.open)
        if self._gateway is None:
            self._gateway = self._own = await Gateway.open()
        return self._gateway

    async def _asked(self) -> bool:
        """Wait until the program asks or ends; whether it asks."""
        running, place = self._running, self._place
        assert running is not None
        assert place is not None
        asking = asyncio.ensure_future(place.desk.next())
        try:
            await asyncio.wait((asking, running), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._question = asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        return self._question is not None

    def _observed(self, before: Question, action: Action) -> Observation:
        """Return the program's next request as what the policy has not seen yet."""
        asked = cast("Question", self._question).asked
        known: tuple[Message, ...] = (*before.asked.messages, action.message)
        changed, self._tools = asked.tools != self._tools, asked.tools
        new = continuation(known, asked.messages)
        if new is None or changed:
            return Observation(asked.messages, tools=asked.tools, anew=True)
        return Observation(new)


def _named_calls(action: Action, question: Question) -> Action:
    """Return the action with ids of calls that no other turn has: programs keep tables by them."""
    calls = [
        replace(call, id=f"call_{question.id}_{number}")
        for number, call in enumerate(action.tool_calls)
    ]
    return replace(action, tool_calls=tuple(calls))


def _found(named: Any) -> Any:
    return load(named) if isinstance(named, str) else named
