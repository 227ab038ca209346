"""Deadlines of the scheduler and the error when one is missed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from agentrl.errors import AgentrlError
from agentrl.rollout.scheduler.watchdog import Phase


class SchedulerStalled(AgentrlError):
    """Nothing moves any more; names what is being waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDeadlines:
    """Deadlines of the scheduler, in seconds."""

    turn_s: float = 600.0
    """One turn of the engine, the time at the gate not counted."""
    fork_s: float = 60.0
    close_gate_s: float = 180.0
    """Until nothing is in flight after the engine was paused. An engine that is cut off is known to
    be after a minute."""
    load_s: float = 1800.0
    """New weights, and an engine in place of one that dies over them."""
    stall_s: float = 3600.0
    """Without any event while a batch is waited for; then the run stops and says what is stuck."""
    phases: Mapping[Phase, float] = field(default_factory=dict[Phase, float])
    """Own deadlines of reset, generate, step, fork and close, which the watchdog looks after."""
    grace_s: float = 30.0
    """Beyond a phase's own deadline before the watchdog ends the trajectory."""
    watch_every_s: float = 10.0


class BlockDeadline:
    """A block that raises `SchedulerStalled` with words when it takes too long."""

    def __init__(self, seconds: float, what: str) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._text = f"{what} took longer than {seconds:.0f} s"

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise SchedulerStalled(self._text) from late
