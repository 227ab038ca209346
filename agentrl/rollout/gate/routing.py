"""Several engines behind one: who holds a trajectory's cache keeps it, unless it is overloaded."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.policy import Completion, GenerateRequest, PolicyEngine


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
    loads: Sequence[float], *, weight: float, home: int | None, cached: float, slack: float
) -> int:
    """Return the index of the engine for a request.

    `loads` are the outstanding weights, `home` the engine that has the trajectory's cache,
    `cached` the share of the prompt that it covers. Home is kept while it is at most that part of
    the request, and `slack`, busier than the least loaded one; of equals the first is taken.
    """
    least = min(range(len(loads)), key=loads.__getitem__)
    if home is not None and loads[home] <= loads[least] + weight * cached + slack:
        return home
    return least


def session_of(request_id: str) -> str:
    """Return which trajectory a request belongs to: its id without the turn and what follows."""
    return request_id.rsplit("/", 2)[0]


class Router:
    """A policy engine over several. Owns them: `close` closes all."""

    def __init__(
        self,
        engines: Sequence[PolicyEngine],
        *,
        weighing: Weighing | None = None,
        session: Callable[[str], str] = session_of,
        sessions: int = 100_000,
    ) -> None:
        """Take at least one engine; the homes of so many sessions are remembered."""
        if not engines:
            raise ValueError("a router needs at least one engine, got none")
        self._engines = tuple(engines)
        self._weighing = weighing or Weighing()
        self._session = session
        self._sessions = sessions
        self._homes: OrderedDict[str, tuple[int, int]] = OrderedDict()
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

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn on the engine that is best for it."""
        if request.id in self._flying:
            raise ValueError(f"request {request.id!r} is in flight already; give each its own id")
        session, tokens = self._session(request.id), len(request.prompt)
        weight = self._weighing.weight(tokens)
        index = self._choose(session, tokens, weight)
        self._remember(session, index, tokens)
        self._loads[index] += weight
        self._flying[request.id] = index
        try:
            completion = await self._engines[index].generate(request)
        finally:
            self._loads[index] -= weight
            del self._flying[request.id]
        self._remember(session, index, tokens + len(completion.token_ids))
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

    def _choose(self, session: str, tokens: int, weight: int) -> int:
        home, held = self._homes.get(session, (None, 0))
        self._requests += 1
        self._weights += weight
        return choose_engine(
            self._loads,
            weight=weight,
            home=home,
            cached=min(1.0, held / max(1, tokens)),
            slack=self._weights / self._requests,
        )

    def _remember(self, session: str, index: int, tokens: int) -> None:
        self._homes[session] = (index, tokens)
        self._homes.move_to_end(session)
        if len(self._homes) > self._sessions:
            self._homes.popitem(last=False)
