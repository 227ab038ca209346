"""A pool of sessions: one supervisor, started when first needed and again when it died.

    pool.open() ──► supervisor forks a keeper, or has one ready ──► the session's own channel

The supervisor only opens; everything else goes over a session's own channel, so sessions do not
wait for each other. What the host holds of a session is a socket: when the host ends, however it
ends, the sockets close and everything behind them ends.

When it has nothing else to do the supervisor prepares sessions ahead, as many as were opened, up to
`warm`. Each is used once, and one that nobody opens ends with the pool.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.channel import Channel
from agentrl_sandbox.family import GRACE_S, KEEPER_GONE, Family
from agentrl_sandbox.inside.frames import START_S, encode
from agentrl_sandbox.launch import Launcher, Started, launcher
from agentrl_sandbox.session import Session

END_S = 5.0
"""How long a supervisor may take to end when its socket is closed, before it is killed."""
WARM = 8
"""Sessions a supervisor keeps ready. Each holds about 5 MB."""


class Supervisor:
    """A running supervisor process and its control socket."""

    def __init__(self, started: Started, control: Channel) -> None:
        self._started = started
        self._control = control

    @classmethod
    async def start(cls, how: Launcher, settings: SandboxSettings, *, warm: int) -> Self:
        """Start one and wait until it can open sessions; `ConfigError` when it cannot start."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                started = await how.start(theirs)
            except BaseException:
                ours.close()
                raise
        control = Channel(ours, partial(_why_dead, started))
        supervisor = cls(started, control)
        place = {"root": started.root, "isolated": how.isolated, "packages": started.packages}
        try:
            control.send(encode({**asdict(settings.limits), **place, "warm": warm}))
            await control.greeting(START_S)
        except SandboxError as error:
            log = started.log.tail() or str(error)
            await supervisor.close()
            raise ConfigError(how.explain(log)) from error
        except BaseException:
            await supervisor.close()
            raise
        return supervisor

    @property
    def alive(self) -> bool:
        """Whether it can still open sessions."""
        return not self._control.ended

    async def open(self) -> socket.socket:
        """Return the socket of a new session."""
        reply = await self._control.ask({"op": "open"}, within_s=START_S + GRACE_S)
        end = reply.socket()
        if end is None:
            raise SandboxError(reply.frame.body["error"])
        return end

    async def close(self) -> None:
        """End it and everything behind it, and wait for the end."""
        self._control.close()
        if not await self._started.wait_end(END_S):
            await self._started.kill()
            await self._started.wait_end(END_S)
        await self._started.release()


class ForkServerPool:
    """A `SandboxPool` whose sessions are forks of one supervisor, up to `warm` made ahead."""

    def __init__(self, settings: SandboxSettings, *, warm: int = WARM) -> None:
        self._settings = settings
        self._warm = warm
        self._launcher = launcher(settings)
        self._supervisor: Supervisor | None = None
        self._starting = asyncio.Lock()
        self._families: set[Family] = set()
        self._closed = False

    async def open(self, *, owns_pool: bool = False) -> Session:
        """Return a fresh session; with `owns_pool` the pool is closed with the session.

        `ConfigError` when this machine cannot isolate sessions as configured, `SandboxError` when
        the supervisor dies meanwhile.
        """
        supervisor = await self._running()
        family = Family(self._settings)
        end = await supervisor.open()
        family.channel = Channel(
            end, lambda: KEEPER_GONE, on_event=family.heard, on_end=family.ended
        )
        try:
            session = await self._first(family, on_close=self.close if owns_pool else None)
        except BaseException:
            family.channel.close()
            raise
        self._families = {f for f in self._families if not f.channel.ended} | {family}
        return session

    async def _first(
        self, family: Family, on_close: Callable[[], Awaitable[None]] | None
    ) -> Session:
        greeting = await family.channel.greeting(START_S + GRACE_S)
        if "refused" in greeting.frame.body:
            raise ConfigError(self._launcher.explain(greeting.frame.body["refused"]))
        number, line = greeting.frame.body["session"], family.line(greeting)
        session = Session(family, number, line, on_close=on_close)
        await session.greeted()
        return session

    async def close(self) -> None:
        """Close every session and stop the supervisor. Idempotent."""
        self._closed = True
        async with self._starting:
            supervisor, self._supervisor = self._supervisor, None
            for family in self._families:
                family.channel.close()
            self._families.clear()
            if supervisor is not None:
                await asyncio.shield(supervisor.close())

    async def _running(self) -> Supervisor:
        async with self._starting:
            if self._closed:
                raise SandboxError("this sandbox pool is closed; open another one")
            if self._supervisor is not None and not self._supervisor.alive:
                dead, self._supervisor = self._supervisor, None
                await dead.close()
            if self._supervisor is None:
                self._supervisor = await Supervisor.start(
                    self._launcher, self._settings, warm=self._warm
                )
            return self._supervisor


def _why_dead(started: Started) -> str:
    log = started.log.tail()
    return "the sandbox supervisor ended" + (f": {log}" if log else "")
