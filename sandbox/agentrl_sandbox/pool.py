"""A pool of sessions behind a few supervisors, each started when needed and again when it died.

    pool.open() ──► a place ──► supervisor forks a keeper, or has one ready ──► its own channel

A supervisor only opens; everything else goes over a session's own channel, so sessions do not wait
for each other. What the host holds of a session are sockets: when the host ends, however it ends,
they close and everything behind them ends.

When it has nothing else to do a supervisor prepares sessions ahead, as many as were opened, up to
`warm`. Each is used once, and one that nobody opens ends with the pool.
"""

import asyncio
import resource
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.threads import await_to_the_end
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.admission import PoolAdmission
from agentrl_sandbox.control_channel import ControlChannel
from agentrl_sandbox.fork_server_process import ForkServerProcess
from agentrl_sandbox.inside.frames import START_S
from agentrl_sandbox.launch import ForkServerLauncher, launcher
from agentrl_sandbox.session import SandboxSession
from agentrl_sandbox.session_forks import GRACE_S, KEEPER_GONE, SessionForks

WARM = 8
"""Sessions a supervisor keeps ready. Each holds about 5 MB."""
_CLOSED = "this sandbox pool is closed; open a new one"
_FDS_PER_SESSION = 3
_FDS_OF_OTHERS = 512


class _Slot:
    """Slot of one supervisor, running or to come."""

    def __init__(self) -> None:
        self.supervisor: ForkServerProcess | None = None
        self.starting = asyncio.Lock()
        self.families: set[SessionForks] = set()

    def load(self) -> int:
        """Return the number of open sessions here; forgets those whose keeper is gone."""
        self.families = {family for family in self.families if not family.channel.ended}
        return len(self.families)


class ForkServerPool:
    """A `SandboxPool` whose sessions are forks of its supervisors, up to `warm` made ahead each.

    What `SandboxSettings.pressure` does not allow at once waits its turn.
    """

    def __init__(self, settings: SandboxSettings, *, warm: int = WARM) -> None:
        self._settings = settings
        self._warm = warm
        self._launcher: ForkServerLauncher = launcher(settings)
        self._admission = PoolAdmission(settings.pressure)
        self._slots = [_Slot() for _ in range(settings.supervisors)]
        self._closed = False
        self._has_worked = False
        _allow_open_files(settings.pressure.sessions)

    async def open(self, *, owns_pool: bool = False) -> SandboxSession:
        """Return a fresh session; with `owns_pool` the pool is closed with the session.

        `ConfigError` when this machine cannot isolate sessions as configured, `SandboxError` when
        the supervisor dies meanwhile, or no place came free in time. Once the pool has opened one,
        the machine can: whatever stops another from starting is a `SandboxError`.
        """
        if self._closed:
            raise SandboxError(_CLOSED)
        place = await self._admission.session()
        try:
            return await self._open(place, self.close if owns_pool else None)
        except BaseException:
            place.close()
            raise

    def figures(self) -> Mapping[str, float]:
        """Return the load of the pool and its waiting times, for metrics."""
        return self._admission.figures()

    async def close(self) -> None:
        """Close every session and stop the supervisors. Idempotent."""
        self._closed = True
        self._admission.close(_CLOSED)
        await asyncio.gather(*(self._close(slot) for slot in self._slots))

    async def _open(
        self, place: ExitStack, on_close: Callable[[], Awaitable[None]] | None
    ) -> SandboxSession:
        slot = min(self._slots, key=_Slot.load)
        supervisor = await self._get_supervisor(slot)
        try:
            keeper, fence = await supervisor.open()
        except SandboxError:
            if supervisor.alive:
                raise
            # It was dead, and nobody had noticed.
            keeper, fence = await (await self._get_supervisor(slot)).open()
        family = SessionForks(self._settings, self._admission, fence)
        family.channel = ControlChannel(
            keeper, lambda: KEEPER_GONE, on_event=family.on_event, on_end=family.on_end
        )
        slot.families.add(family)
        try:
            greeting = await family.channel.greeting(START_S + GRACE_S)
            if "refused" in greeting.frame.body:
                raise self._build_refusal(self._launcher.explain(greeting.frame.body["refused"]))
            number, line = greeting.frame.body["session"], family.open_line(greeting)
            session = SandboxSession(family, number, line, place, on_close=on_close)
            await session.wait_greeting()
        except BaseException:
            family.channel.close()
            raise
        self._has_worked = True
        return session

    async def _get_supervisor(self, slot: _Slot) -> ForkServerProcess:
        async with slot.starting:
            if self._closed:
                raise SandboxError(_CLOSED)
            if slot.supervisor is not None and not slot.supervisor.alive:
                dead, slot.supervisor = slot.supervisor, None
                await await_to_the_end(dead.close())
            if slot.supervisor is None:
                try:
                    slot.supervisor = await ForkServerProcess.start(
                        self._launcher, self._settings, warm=self._warm
                    )
                except ConfigError as error:
                    raise self._build_refusal(str(error)) from error
            return slot.supervisor

    def _build_refusal(self, why: str) -> ConfigError | SandboxError:
        """Return the error for what could not start: nobody's configuration if others did."""
        if not self._has_worked:
            return ConfigError(why)
        return SandboxError(
            f"a sandbox did not start, and neither did previous ones like it: {why}"
        )

    async def _close(self, slot: _Slot) -> None:
        async with slot.starting:
            supervisor, slot.supervisor = slot.supervisor, None
            for family in slot.families:
                family.channel.close()
            slot.families.clear()
            if supervisor is not None:
                await await_to_the_end(supervisor.close())


def _allow_open_files(sessions: int) -> None:
    """Raise our own limit on open files, as far as we may, to what so many sessions take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = sessions * _FDS_PER_SESSION + _FDS_OF_OTHERS
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
