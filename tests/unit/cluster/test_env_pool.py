"""Environments in workers: what a host does, what a fleet does, what their environments promise.

Workers are in this process here, behind a copy of all they are told; actors are in test_ray.py.

Mutants seen caught: errors of one kind for all; a step that a new worker takes for its own; a call
that goes on when it was cancelled; one worker for all; restarts without end; a place that is not
given back; environments left open; another way to fork than the environment's.
"""

import asyncio
import pickle
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast, get_args

import pytest

from agentrl.authoring.tool_env import ToolEnv
from agentrl.cluster.env_pool import EnvWorkerPool, WorkerDied
from agentrl.cluster.env_worker import (
    ERRORS,
    EnvRunContext,
    EnvWorkerHost,
    Method,
    RemoteFailure,
)
from agentrl.cluster.remote_env import RemoteEnv
from agentrl.env import Action, BaseEnv, ForkStrategy, GoldPlayer, Info, Observation, Step, say
from agentrl.errors import (
    ConfigError,
    EngineError,
    EnvError,
    FailureKind,
    ForkUnsupported,
    RolloutError,
    SandboxError,
    ToolFailure,
)
from agentrl.message import Message
from agentrl.rewards import exact_answer
from agentrl.runtime.run_id import run_id
from agentrl.runtime.scope import shared
from agentrl.sandbox import SandboxSettings, sandbox_settings
from agentrl.task import Split, Task
from agentrl.testing import check_env
from tests.support.doubles import double, doubles, gold

TASK = Task(prompt="q", answer="a", id="t")
SOON_S = 60.0
BELONGINGS = EnvRunContext(sandbox=SandboxSettings(after_timeout="end"), run_id="test-cluster")


def doubling() -> ToolEnv:
    return ToolEnv(tasks=doubles, tools=[double], reward=exact_answer, gold=gold)


class Pool:
    """Something that environments share."""

    opened = 0
    closed = 0

    @classmethod
    async def open(cls) -> "Pool":
        cls.opened += 1
        return cls()

    async def close(self) -> None:
        Pool.closed += 1


class Moody(BaseEnv):
    """Does what it is told: raises, hangs, forks, tells what it was given."""

    fork_strategy: ForkStrategy = "copy"
    live = 0

    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_open = False

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        if not self.is_open:
            Moody.live += 1
        self.said, self.is_open = [], True
        await shared("pool", Pool.open)
        told = f"{seed} {options['task'].id if options else ''} {run_id()}"
        return Observation((Message("user", f"{told} {sandbox_settings().after_timeout}"),), ()), {}

    async def step(self, action: Action) -> Step:
        self.said.append(action.text)
        match action.text:
            case "hang":
                try:
                    await asyncio.sleep(1000)
                finally:
                    self.said.append("stopped")
            case "plain":
                raise LookupError("lost")
            case "exit":
                sys.exit(0)
            case "late":
                raise TimeoutError
            case _:
                if action.text in RAISED:
                    raise RAISED[action.text](action.text)
        return Observation((Message("user", " ".join(self.said)),)), 1.0, False, False, {"n": 1}

    async def fork(self) -> Self:
        other = type(self)()
        other.said, other.is_open = [*self.said], True
        Moody.live += 1
        return other

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            try:
                await asyncio.sleep(1000 if "close slowly" in self.said else 0)
            finally:
                Moody.live -= 1


RAISED: dict[str, type[Exception]] = {
    "config": ConfigError,
    "env": EnvError,
    "tool": ToolFailure,
    "sandbox": SandboxError,
    "engine": EngineError,
    "fork": ForkUnsupported,
}


class Here:
    """A worker in this process. What goes in and out is copied, as between processes."""

    def __init__(self, host: EnvWorkerHost) -> None:
        self.host = host
        self.is_dead = False

    @classmethod
    async def start(cls, make_env: Any = Moody) -> "Here":
        host = EnvWorkerHost(make_env, BELONGINGS)
        try:
            await host.open()
        except BaseException:
            await host.close()  # a process would take its scope with it
            raise
        return cls(host)

    async def call(self, number: int, method: Method, *arguments: Any) -> Any:
        self._check()
        told = pickle.loads(pickle.dumps(arguments))
        answer = await self.host.call(number, method, *told)
        self._check()
        return pickle.loads(pickle.dumps(answer))

    async def cancel(self, number: int) -> None:
        self._check()
        await self.host.cancel(number)

    async def close(self) -> None:
        await self.host.close()

    def _check(self) -> None:
        if self.is_dead:
            raise WorkerDied("it was killed")


class Fleets:
    """A fleet, and the workers it was given."""

    def __init__(self, *, workers: int = 2, max_restarts: int = 1, make_env: Any = Moody) -> None:
        self.started: list[Here] = []
        self.refuses = 0
        self.has_room = asyncio.Event()
        self.has_room.set()

        async def start() -> Here:
            await self.has_room.wait()
            if self.refuses:
                self.refuses -= 1
                raise WorkerDied("no room")
            self.started.append(await Here.start(make_env))
            return self.started[-1]

        self.fleet = EnvWorkerPool(
            start, workers=workers, max_restarts=max_restarts, start_s=SOON_S
        )

    async def __aenter__(self) -> "Fleets":
        await self.fleet.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.fleet.close()

    def env(self) -> RemoteEnv:
        return RemoteEnv(Moody(), self.fleet)

    @property
    def held(self) -> list[int]:
        return [worker.host.held for worker in self.started]


async def begun(env: RemoteEnv) -> str:
    observation, _ = await env.reset(seed=3, options={"task": TASK})
    return observation.messages[0].text


async def said(env: RemoteEnv, text: str) -> str:
    observation, *_ = await env.step(say(text))
    return observation.messages[0].text


async def dies(worker: Here, env: RemoteEnv) -> None:
    """Kill a worker, which its environment hears of."""
    worker.is_dead = True
    with pytest.raises(EnvError, match="the worker died"):
        await env.step(say("hello"))


async def test_an_environment_is_played_where_it_is_with_what_belongs_to_the_run() -> None:
    Pool.opened = Pool.closed = 0
    async with Fleets() as fleets:
        first, second, third = fleets.env(), fleets.env(), fleets.env()
        for env in (first, second, third):
            assert await begun(env) == "3 t test-cluster end"
        assert sorted(fleets.held) == [1, 2]
        assert Pool.opened == 2, "one per worker"
        answer = await first.step(say("hello"))
        assert answer[1:] == (1.0, False, False, {"n": 1})
        assert await said(first, "again") == "hello again"
        for env in (first, second, third):
            await env.close()
            await env.close()
        assert fleets.held == [0, 0]
        assert Pool.closed == 0
    assert (Pool.closed, Moody.live) == (2, 0)


async def test_who_has_least_gets_the_next() -> None:
    async with Fleets() as fleets:
        envs = [fleets.env() for _ in range(3)]
        for env in envs:
            await begun(env)
        assert fleets.held == [2, 1]
        for env in (envs[0], envs[2]):
            await env.close()
        others = [fleets.env(), fleets.env()]
        for env in others:
            await begun(env)
        assert fleets.held == [2, 1]
        for env in (envs[1], *others):
            await env.close()


async def test_forks_are_apart() -> None:
    async with Fleets() as fleets:
        env = fleets.env()
        with pytest.raises(RuntimeError, match="no episode"):
            await env.fork()
        await begun(env)
        await said(env, "a")
        copy = await env.fork()
        assert await said(copy, "b") == "a b"
        assert await said(env, "c") == "a c"
        await env.close()
        assert await said(copy, "d") == "a b d"
        await copy.close()
        assert fleets.held == [0, 0]


@pytest.mark.parametrize("kind", [*RAISED])
async def test_errors_keep_their_kind(kind: str) -> None:
    async with Fleets() as fleets:
        env = fleets.env()
        await begun(env)
        place = r"; at tests/unit/cluster/test_env_pool\.py:\d+, in step"
        with pytest.raises(RAISED[kind], match=rf"^{kind}({place})?$"):
            await env.step(say(kind))
        with pytest.raises(EnvError, match="LookupError: lost"):
            await env.step(say("plain"))
        with pytest.raises(EnvError, match=rf"RuntimeError: it called sys\.exit\(0\){place}"):
            await env.step(say("exit"))
        with pytest.raises(EnvError, match="missed its deadline"):
            await env.step(say("late"))
        await env.close()


async def test_what_is_cancelled_here_stops_there() -> None:
    async with Fleets() as fleets:
        env = fleets.env()
        await begun(env)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await env.step(say("hang"))
        assert await said(env, "go on") == "hang stopped go on"
        await env.close()


async def test_a_close_that_is_cancelled_here_stops_there() -> None:
    """A mutant that leaves it to go on in the worker, episode after episode, is caught."""
    async with Fleets() as fleets:
        env = fleets.env()
        await begun(env)
        await said(env, "close slowly")
        live = Moody.live
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await env.close()
        assert Moody.live == live - 1


async def test_a_worker_that_dies_fails_what_it_held_and_is_replaced() -> None:
    async with Fleets(workers=1) as fleets:
        env = fleets.env()
        await begun(env)
        fleets.started[0].is_dead = True
        with pytest.raises(EnvError, match="step: the worker died: it was killed"):
            await env.step(say("hello"))
        with pytest.raises(RuntimeError, match="no episode"):
            await env.step(say("hello"))
        async with asyncio.timeout(SOON_S):
            assert await begun(env) == "3 t test-cluster end"
        assert (len(fleets.started), fleets.fleet.restarts) == (2, 1)
        other = fleets.env()
        await begun(other)
        fleets.started[1].is_dead = True
        await other.close()  # it went with its worker
        with pytest.raises(EnvError, match=r"cluster\.max_restarts is used up"):
            await fleets.env().reset()
        for worker in fleets.started:
            await worker.close()


async def test_a_worker_that_cannot_be_replaced_is_told_of() -> None:
    async with Fleets(workers=1) as fleets:
        env = fleets.env()
        await begun(env)
        fleets.started[0].is_dead, fleets.refuses = True, 10**6
        with pytest.raises(EnvError, match="the worker died"):
            await env.step(say("hello"))
        with pytest.raises(EnvError, match="could not be replaced: no room"):
            await asyncio.wait_for(begun(env), SOON_S)
        await fleets.started[0].close()


async def test_a_worker_that_dies_while_it_starts_is_replaced_like_any_other() -> None:
    async with Fleets(workers=1, max_restarts=3) as fleets:
        env = fleets.env()
        await begun(env)
        fleets.started[0].is_dead, fleets.refuses = True, 2
        with pytest.raises(EnvError, match="the worker died"):
            await env.step(say("hello"))
        async with asyncio.timeout(SOON_S):
            await begun(env)
        assert (len(fleets.started), fleets.fleet.restarts) == (2, 3)
        await env.close()
        await fleets.started[0].close()


async def test_a_replacement_that_finds_no_room_is_waited_for_while_others_play() -> None:
    async with Fleets() as fleets:
        one, other = fleets.env(), fleets.env()
        await begun(one)
        await begun(other)
        fleets.has_room.clear()
        fleets.fleet._start_s = 0.05  # pyright: ignore[reportPrivateUsage]
        await dies(fleets.started[0], one)
        await asyncio.sleep(0.3)
        assert await begun(one), "with the worker that lives"
        await one.close()
        fleets.has_room.set()
        async with asyncio.timeout(SOON_S):
            while len(fleets.started) < 3:  # noqa: ASYNC110 - there is nothing else to wait on
                await asyncio.sleep(0.01)
        assert fleets.fleet.restarts == 1
        await other.close()


async def test_a_worker_that_is_given_up_is_ended_for_its_room() -> None:
    async with Fleets(workers=1) as fleets:
        env = fleets.env()
        await begun(env)
        await dies(fleets.started[0], env)
        async with asyncio.timeout(SOON_S):
            await begun(env)
            while fleets.started[0].host.held:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        await env.close()


async def test_one_death_at_the_start_is_an_accident() -> None:
    fleets = Fleets(max_restarts=1)
    fleets.refuses = 1
    async with fleets:
        assert (len(fleets.started), fleets.fleet.restarts) == (2, 1)
    fleets = Fleets(max_restarts=0)
    fleets.refuses = 1
    with pytest.raises(WorkerDied, match="no room"):
        await fleets.fleet.open()


async def test_workers_that_do_not_come_leave_nothing() -> None:
    fleets = Fleets()
    fleets.refuses = 10**6
    with pytest.raises(WorkerDied, match="no room"):
        await fleets.fleet.open()
    with pytest.raises(EnvError, match="closed"):
        await fleets.env().reset()


async def test_a_host_knows_only_what_it_was_given() -> None:
    host = EnvWorkerHost(Moody, BELONGINGS)
    await host.open()
    assert await host.call(7, "step", say("x")) == RemoteFailure(
        "env", "the worker of environment 7 has been replaced by another"
    )
    assert await host.call(7, "close") is None
    await host.call(8, "reset", 0, {"task": TASK})
    await host.close()
    assert (host.held, Moody.live) == (0, 0)


async def test_promises_and_players_are_those_of_the_environment() -> None:
    async with Fleets(make_env=doubling) as fleets:
        env = RemoteEnv(doubling(), fleets.fleet)
        assert isinstance(env, GoldPlayer)
        assert not isinstance(RemoteEnv(Moody(), fleets.fleet), GoldPlayer)
        promises = await check_env(env)
        assert {"forks do not interfere", "reset is deterministic"} <= {*promises}


def test_every_failure_keeps_its_kind_on_its_way_from_a_worker() -> None:
    for kind in {*get_args(FailureKind)} - {"stale"}:
        error = cast("type[RolloutError]", ERRORS[kind])
        sent = RemoteFailure.from_error(error("lost")).error()
        assert isinstance(sent, RolloutError)
        assert (sent.kind, str(sent)) == (kind, "lost")
