"""New weights for several engines, one after the other, while the others go on sampling (DART).

    version    who has it                                         what it decides
    ---------  -------------------------------------------------  ----------------------------------
    `version`  the trainer                                        how old a token is
    `reached`  every engine: the others are ahead, by one at most what may begin, and how old it is

A trajectory that begins is counted as begun at `reached`, whichever engine plays it, so that no
bound is find_exceeded by one that lags behind. One roll is under way at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from agentrl.errors import ConfigError
from agentrl.policy import PolicyEngine
from agentrl.rollout.scheduler.deadlines import BlockDeadline


@runtime_checkable
class RollingEngine(PolicyEngine, Protocol):
    """A policy engine over several that can be given weights one after the other."""

    async def prepare(self, weights: Any) -> Any:
        """Return weights that stay as they are, whatever becomes of those that are given."""
        ...

    async def roll(self, prepared: Any, version: int) -> None:
        """Load every engine in turn. Requests go on, each at its own engine's version.

        `version` of the whole is the old one until the last has the new one.
        """
        ...


class RollingUpdate:
    """The roll that is under way, if there is one. Owned by the gate."""

    def __init__(
        self,
        engine: PolicyEngine,
        load_s: float,
        *,
        reached: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`reached` hears of the version that every engine has, `failed` of what kept it from it.

        Raises `ConfigError` for an engine that is not several.
        """
        if not isinstance(engine, RollingEngine):
            raise ConfigError(
                f"engine.rolling is true, but a {type(engine).__name__} is a single engine: no "
                "other engine could keep sampling during an update; set engine.processes to 2 or "
                "more, or name several engine.addresses"
            )
        self._engine = engine
        self._load_s = load_s
        self._reached = reached
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._last_s = 0.0

    def figures(self) -> dict[str, float]:
        """Return the seconds of the last roll, for the metrics."""
        return {"gate/roll_s": self._last_s}

    async def begin(self, weights: Any, version: int) -> None:
        """Copy the weights and let them go round; the roll before must have been settled."""
        async with BlockDeadline(self._load_s, f"copying the weights of version {version}"):
            prepared = await self._engine.prepare(weights)
        self._task = asyncio.create_task(self._go(prepared, version), name="agentrl-roll")

    async def settle(self) -> None:
        """Wait until every engine has the newest weights. Raises what kept one from it."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the roll, wherever it is. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            # Who settles has heard of what went wrong, and an error nobody asks for is printed.
            _ = self._task.cancelled() or self._task.exception()

    async def _go(self, prepared: Any, version: int) -> None:
        now_s = asyncio.get_running_loop().time
        began = now_s()
        try:
            async with BlockDeadline(
                self._load_s, f"updating the engines to version {version} one by one"
            ):
                await self._engine.roll(prepared, version)
        except Exception as error:
            self._failed(error)
            raise
        self._last_s = now_s() - began
        self._reached(version)
