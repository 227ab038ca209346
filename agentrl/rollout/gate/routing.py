"""Several engines behind one: who holds a trajectory's cache keeps it, unless it is overloaded."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.policy import Completion, GenerateRequest, PolicyEngine
from agentrl.rollout.gate.health import Health, HealthRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """How much a request weighs by the length of its prompt (AgentMath)."""

    base_tokens: int = 4096
    """A prompt weighs one more for each of these."""
    least: int = 1

    def weight(self, prompt_tokens: int) -> int:
        """Return the weight of a request."""
        return prompt_tokens // self.base_tokens + self.least


def choose_engine(
    loads: Sequence[float],
    *,
    among: Sequence[int],
    weight: float,
    home: int | None,
    cached: float,
    slack: float,
) -> int:
    """Return the index of the engine for a request: one of `among`, which is not empty.

    `loads` are the outstanding weights, `home` the engine that has the trajectory's cache,
    `cached` the share of the prompt that it covers. Home is kept while it is at most that part of
    the request, and `slack`, busier than the least loaded one; of equals the first is taken.
    """
    least = min(among, key=loads.__getitem__)
    if home is not None and home in among and loads[home] <= loads[least] + weight * cached + slack:
        return home
    return least


def session_of(request_id: str) -> str:
    """Return which trajectory a request belongs to: its id without the turn and what follows."""
    return request_id.rsplit("/", 2)[0]


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a trajectory was last."""

    index: int
    tokens: int
    """What its cache covers."""
    failed: bool = False
    """Its last request there failed: the next one goes elsewhere."""


class Router:
    """A policy engine over several. Owns them: `close` closes all.

    One that fails so often in a row gets no new work until it answers again. What fails there rises
    as it is; whoever tries again is sent elsewhere.
    """

    def __init__(
        self,
        engines: Sequence[PolicyEngine],
        *,
        weighing: Weighing | None = None,
        health: HealthRule | None = None,
        session: Callable[[str], str] = session_of,
        sessions: int = 100_000,
    ) -> None:
        """Take at least one engine; the homes of so many sessions are remembered."""
        if not engines:
            raise ValueError("a router needs at least one engine, got none")
        self._engines = tuple(engines)
        self._weighing = weighing or Weighing()
        self._rule = health or HealthRule()
        self._health = [Health() for _ in engines]
        self._session = session
        self._sessions = sessions
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._loads = [0] * len(engines)
        self._flying: dict[str, int] = {}
        self._requests = self._weights = 0

    @property
    def version(self) -> int:
        """Version that every engine has reached."""
        return min(engine.version for engine in self._engines)

    @property
    def loads(self) -> tuple[int, ...]:
        """The outstanding weight of each engine."""
        return tuple(self._loads)

    @property
    def up(self) -> tuple[bool, ...]:
        """Whether each engine gets new work."""
        return tuple(health.due_s is None for health in self._health)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn on the engine that is best for it; while none is up, all are asked."""
        if request.id in self._flying:
            raise ValueError(f"request {request.id!r} is in flight already; give each its own id")
        session, tokens = self._session(request.id), len(request.prompt)
        weight = self._weighing.weight(tokens)
        index = self._choose(session, tokens, weight)
        self._remember(session, _Home(index, tokens))
        self._loads[index] += weight
        self._flying[request.id] = index
        try:
            completion = await self._watched(index, request)
        finally:
            self._loads[index] -= weight
            del self._flying[request.id]
        self._remember(session, _Home(index, tokens + len(completion.token_ids)))
        return completion

    async def abort(self, request_id: str) -> None:
        """End a request now; an id that is not in flight is ignored."""
        if (index := self._flying.get(request_id)) is not None:
            await self._engines[index].abort(request_id)

    async def pause(self) -> None:
        """Pause every engine."""
        await asyncio.gather(*(engine.pause() for engine in self._engines))

    async def resume(self) -> None:
        """Resume every engine."""
        await asyncio.gather(*(engine.resume() for engine in self._engines))

    async def load(self, weights: Any, version: int) -> None:
        """Load every engine; their caches are gone, and trajectories find new homes."""
        await asyncio.gather(*(engine.load(weights, version) for engine in self._engines))
        self._homes.clear()

    async def close(self) -> None:
        """Close every engine. Idempotent."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    async def _watched(self, index: int, request: GenerateRequest) -> Completion:
        """Sample, and learn from how it ends whether the engine is well."""
        now_s = asyncio.get_running_loop().time
        self._health[index] = self._health[index].asked(request.id, now_s())
        try:
            completion = await self._engines[index].generate(request)
        except (ValueError, asyncio.CancelledError):
            # The request was wrong, or nobody waits for it any more.
            self._health[index] = self._health[index].let_go(request.id)
            raise
        except Exception:
            self._health[index] = self._health[index].failed(request.id, self._rule, now_s())
            self._remember(self._session(request.id), _Home(index, 0, failed=True))
            raise
        self._health[index] = self._health[index].answered()
        return completion

    def _choose(self, session: str, tokens: int, weight: int) -> int:
        home = self._homes.get(session)
        self._requests += 1
        self._weights += weight
        return choose_engine(
            self._loads,
            among=self._open_to(home),
            weight=weight,
            home=None if home is None else home.index,
            cached=0.0 if home is None else min(1.0, home.tokens / max(1, tokens)),
            slack=self._weights / self._requests,
        )

    def _open_to(self, home: _Home | None) -> Sequence[int]:
        """Return the engines that a request may go to."""
        now_s = asyncio.get_running_loop().time()
        well = [i for i, h in enumerate(self._health) if h.state(now_s) in ("up", "due")]
        among = well or [*range(len(self._engines))]
        elsewhere = [i for i in among if home is None or not home.failed or i != home.index]
        return elsewhere or among

    def _remember(self, session: str, home: _Home) -> None:
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > self._sessions:
            self._homes.popitem(last=False)
