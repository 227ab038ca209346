"""An agent program as an environment: its requests are observations, our actions its answers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.authoring.task_choice import choose_task
from agentrl.authoring.tool_env import Judged, compute_reward
from agentrl.env import Action, BaseEnv, Info, Observation, Step, conversation_fault
from agentrl.errors import ConfigError, ContextOverflow, EnvError, RequestError
from agentrl.gateway.listening import LOOPBACK, parse_listen_address
from agentrl.gateway.server import GatewayAddress, GatewayServer
from agentrl.gateway.session import GatewayRequest
from agentrl.message import Message
from agentrl.runtime.imports import import_callable
from agentrl.runtime.scope import shared
from agentrl.task import Split, Task
from agentrl_envs.blackbox.policy_errors import PolicyErrors, check_errors, find_policy_error
from agentrl_envs.blackbox.program import (
    AgentProgram,
    CommandProgram,
    FunctionProgram,
    ProgramEndpoint,
)

Agent = Callable[[Task, ProgramEndpoint], Any]
Score = Callable[[Task, Any], Judged | Awaitable[Judged]]
"""Scores a program's result."""
Gold = Callable[[Task, Sequence[Message]], Action]
"""Answers a program's request for a task, having seen these messages."""
TaskSource = Callable[[Split, int], Iterable[Task]]

_END_S = 5.0


class ProgramEnv(BaseEnv, ABC):
    """Runs a program for every episode and answers its requests with the policy.

    A turn is one request. A request that goes on with a conversation the program has had, whichever
    and however long ago, goes on in its context, token by token what was sampled; any other begins
    a context anew. Several at once are answered one after the other. One that the chat template
    cannot render is refused, and costs no turn. The episode ends with the program, and is then
    scored. One that was refused an answer, and did without it, is a failure (`RequestError`). One
    that ends with an error that the policy brought about (`policy_errors`) is paid for that, 0 as a
    rule; one that fails for any other reason is a failure, never a reward. What a request
    says of the run's sampling (`temperature`) is refused by name, or ignored by name. A call that
    it requires is begun for the policy. A subclass says what the tasks are, and what a result is
    worth.
    """

    def __init__(
        self,
        program: AgentProgram,
        *,
        policy_errors: PolicyErrors | None = None,
        ignore_fields: Sequence[str] = (),
        host: str = LOOPBACK,
        advertise: str | None = None,
    ) -> None:
        """See `BlackBoxEnv`; nothing is started."""
        if isinstance(ignore_fields, str):
            raise ConfigError(f"ignore_fields must be a list of names, got {ignore_fields!r}")
        _check_texts("ignore_fields", ignore_fields)
        self._program = program
        self._policy_errors = check_errors(policy_errors or {})
        self._ignored = tuple(ignore_fields)
        self._address = parse_listen_address(host, advertise)
        self._own: GatewayServer | None = None
        self._gateway: GatewayServer | None = None
        self._place: GatewayAddress | None = None
        self._running: asyncio.Task[Any] | None = None
        self._task: Task | None = None
        self._question: GatewayRequest | None = None

    @abstractmethod
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of a split."""

    @abstractmethod
    def score_result(self, task: Task, result: Any) -> Judged | Awaitable[Judged]:
        """Return the reward of a program's result."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start the program, and return what it asks first.

        Raises `EnvError` for a program that ends without asking anything.
        """
        await self._end_episode()
        self._task = choose_task(self, seed=seed or 0, options=options or {})
        gateway = await self._open_gateway()
        self._place = gateway.place(self._ignored)
        self._running = asyncio.create_task(
            self._program.run(self._task, ProgramEndpoint.from_address(self._place)),
            name="agentrl-program",
        )
        observation = await self._await_question()
        if observation is None:
            self._check_refusals(self._place, self._running)
            refusal, error = self._place.desk.long_request, self._running.exception()
            why = f"; what it asked was refused: {refusal}" if refusal else ""
            if error is not None and not refusal:
                raise error
            end = "" if error is None else f"; it then ended: {error}"
            raise EnvError(
                f"the program ended without a request to the policy{why}{end}"
            ) from error
        return observation, {}

    async def step(self, action: Action) -> Step:
        """Answer the program, and return what it asks next, or how it was scored."""
        if self._question is None or self._running is None or self._task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        question, self._question = self._question, None
        question.answer(action)
        if (observation := await self._await_question()) is not None:
            return observation, 0.0, False, False, {}
        reward, info = await self._score_end(self._task, self._running)
        return Observation(()), reward, True, False, info

    async def _score_end(self, task: Task, ended: asyncio.Task[Any]) -> tuple[float, Info]:
        """Return the reward of a program's end; raise its error where it failed by itself."""
        assert self._place is not None
        self._check_refusals(self._place, ended)
        if (error := ended.exception()) is None:
            return await compute_reward(self.score_result, task, ended.result())
        if (outcome := find_policy_error(error, self._policy_errors)) is None:
            raise error
        line, reward = outcome
        return reward, {"policy_error": line}

    def _check_refusals(self, place: GatewayAddress, program: asyncio.Task[Any]) -> None:
        """Raise `RequestError` where the program was refused an answer, and did without it."""
        for refusal in place.desk.refusals.values():
            has_ended = program.done() and not program.cancelled()
            error = program.exception() if has_ended else None
            end = "" if error is None else f"; the program then ended: {error}"
            raise RequestError(f"a request of the program was refused: {refusal}{end}") from error

    async def close(self) -> None:
        """End the episode. Raises `RequestError` where a limit cut a program refused an answer."""
        place, running = self._place, self._running
        is_cut = self._question is not None
        await self._end_episode()
        if is_cut and place is not None and running is not None:
            self._check_refusals(place, running)

    async def _end_episode(self) -> None:
        running, self._running = self._running, None
        place, self._place = self._place, None
        server, self._own = self._own, None
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
            if server is not None:
                await server.close()

    async def _open_gateway(self) -> GatewayServer:
        address = self._address
        gateway = await shared(("agentrl.gateway", address), lambda: GatewayServer.open(address))
        if gateway is None:
            gateway = self._own = await GatewayServer.open(address)
        self._gateway = gateway
        return gateway

    async def _await_question(self) -> Observation | None:
        """Return the program's next question for the policy; None when the program has ended."""
        while (question := await self._await_request()) is not None:
            observation = _build_observation(question)
            try:
                fault = await conversation_fault(observation)
            except ContextOverflow as error:
                question.refuse(str(error), is_too_long=True)
                continue
            if fault is None:
                self._question = question
                return observation
            question.refuse(fault)
        return None

    async def _await_request(self) -> GatewayRequest | None:
        running, place = self._running, self._place
        assert running is not None
        assert place is not None
        asking = asyncio.ensure_future(place.desk.next())
        try:
            await asyncio.wait((asking, running), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


class BlackBoxEnv(ProgramEnv):
    """A program of the user's as an environment, with tasks and a score from functions.

    Tasks are put into the split they were asked for.
    """

    def __init__(
        self,
        *,
        tasks: str | TaskSource,
        score: str | Score,
        gold: str | Gold | None = None,
        agent: str | Agent | None = None,
        command: Sequence[str] | None = None,
        pass_env: Sequence[str] = (),
        policy_errors: PolicyErrors | None = None,
        ignore_fields: Sequence[str] = (),
        host: str = LOOPBACK,
        advertise: str | None = None,
    ) -> None:
        """Choose a program; nothing is started.

        Args:
            tasks: A function of a split and a seed that yields tasks, or its name,
                `module:function`.
            score: A function of the task and the program's result, or its name.
            gold: A function of the task and the messages so far that answers the program's requests
                as the policy should, or its name: demonstrations for a warm start.
            agent: The program as a function of the task and a `ProgramEndpoint`, or its name;
                its result is what it returns.
            command: The program as words of a command line, in which `{prompt}`, `{task_id}` and
                `{seed}` stand for the task's, and `{here}` for the folder in which agentrl was
                started; its result is what it writes to stdout.
            pass_env: Names of our variables that the command gets.
            policy_errors: Rewards of ends that are the policy's doing, by the exception's qualified
                name or the exit code; added to those that are known, which pay 0.
            ignore_fields: Names of fields of requests that are not honoured and shall not be
                refused either, such as `temperature`.
            host: IP address on which the gateway listens, `0.0.0.0` for all of this machine's, with
                a port or without one (`0.0.0.0:8000`). By default only this machine reaches it.
            advertise: Base URL of the gateway that programs are told, `http://NAME-OR-IP`, where
                they do not reach `host` by its own address.
        """
        if (agent is None) == (command is None):
            raise ConfigError(
                "give either agent (a function) or command (the words of a command line)"
            )
        if command is not None and (isinstance(command, str) or not command):
            raise ConfigError(f"command must be a list of words, got {command!r}")
        _check_texts("command", command or ())
        _check_texts("pass_env", pass_env)
        self._tasks = _resolve("tasks", tasks)
        self._score = _resolve("score", score)
        if gold is not None:
            self.gold = _resolve("gold", gold)
        super().__init__(
            FunctionProgram(_resolve("agent", agent))
            if agent is not None
            else CommandProgram(words=tuple(command or ()), pass_env=tuple(pass_env)),
            policy_errors=policy_errors,
            ignore_fields=ignore_fields,
            host=host,
            advertise=advertise,
        )

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        for task in self._tasks(split, seed):
            yield task if task.split == split else replace(task, split=split)

    def score_result(self, task: Task, result: Any) -> Judged | Awaitable[Judged]:
        return self._score(task, result)


def _build_observation(question: GatewayRequest) -> Observation:
    turn, new = question.node.continuation()
    if turn is None:
        is_first = question.desk.turns == 0
        tools, request = question.tools, question.request
        return Observation(new, tools=tools, anew=not is_first, request=request)
    is_last = turn == question.desk.turns - 1
    return Observation(new, after=None if is_last else turn, request=question.request)


def _check_texts(key: str, values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ConfigError(f"{key} has {value!r:.80}, which is no text; put it in quotes")


def _resolve(key: str, named: Any) -> Any:
    if isinstance(named, str):
        return import_callable(named)
    if not callable(named):
        raise ConfigError(f"{key} must be a function or its name, module:function, got {named!r}")
    return named
