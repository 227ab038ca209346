"""Several engines behind one: who holds a trajectory's cache keeps it, unless it is overloaded."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.engine.health import EngineHealth, EngineHealthRule
from agentrl.engine.request_checks import check_id
from agentrl.errors import first_error
from agentrl.policy import Completion, GenerateRequest, PolicyEngine, ScoreRequest
from agentrl.runtime.closing import await_all, close_all
from agentrl.runtime.threads import await_to_the_end

R = TypeVar("R")

BASE_TOKENS = 4096
"""A request weighs one more for each of these that its prompt has (AgentMath)."""
MOST_SESSIONS = 100_000
"""Trajectories whose homes are remembered."""


def request_weight(prompt_tokens: int, *, base_tokens: int = BASE_TOKENS) -> int:
    """Return the weight of a request by the length of its prompt."""
    return prompt_tokens // base_tokens + 1


def choose_engine(
    loads: Sequence[int] | Sequence[float],
    *,
    among: Sequence[int],
    weight: int,
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


def freshest(
    among: Sequence[int],
    *,
    versions: Sequence[int],
    loads: Sequence[int] | Sequence[float],
    slack: float,
) -> Sequence[int]:
    """Return which of `among` a trajectory may begin on: those with the newest weights.

    While only a few have them, each takes up to twice what the least loaded of `among` has, and
    `slack`; beyond that it begins anywhere. `among` is not empty.
    """
    newest = max(versions[index] for index in among)
    most = 2 * min(loads[index] for index in among) + slack
    fresh = [i for i in among if versions[i] == newest and loads[i] <= most]
    return fresh or among


def session_of(request_id: str) -> str:
    """Return which trajectory a request belongs to: its id without the turn and what follows."""
    return request_id.rsplit("/", 2)[0]


@dataclass(frozen=True, slots=True)
class _Home:
    index: int
    tokens: int
    version: int
    failed: bool = False
    """Its last request there failed: the next one goes elsewhere."""


class EngineRouter:
    """A policy engine over several. Owns them: `close` closes all.

    One that fails so often in a row gets no new work until it answers again. What fails there rises
    as it is; whoever tries again is sent elsewhere.
    """

    def __init__(
        self,
        engines: Sequence[PolicyEngine],
        *,
        base_tokens: int = BASE_TOKENS,
        health: EngineHealthRule | None = None,
    ) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine, got none")
        self._engines = tuple(engines)
        self._base_tokens = base_tokens
        self._rule = health or EngineHealthRule()
        self._health = [EngineHealth() for _ in engines]
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._loads = [0] * len(engines)
        self._flying: dict[str, int] = {}
        self._loading: int | None = None
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
        """Per engine, true when it gets new work."""
        return tuple(health.due_s is None for health in self._health)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn on the engine that is best for it; while none is up, all are asked."""
        return await self._route(
            request,
            lambda index: self._engines[index].generate(request),
            lambda completion: len(completion.token_ids),
        )

    async def _route(
        self,
        request: GenerateRequest | ScoreRequest,
        ask: Callable[[int], Awaitable[R]],
        count_tokens: Callable[[R], int],
    ) -> R:
        """Ask the engine that is best for a request, which has the prompt and the counted tokens of
        the answer in its cache then."""
        check_id(request.id, self._flying)
        session, tokens = session_of(request.id), len(request.prompt)
        weight = request_weight(tokens, base_tokens=self._base_tokens)
        index = self.best(request.id, tokens)
        self._remember(session, self._home(index, tokens))
        self._loads[index] += weight
        self._flying[request.id] = index
        try:
            answer = await self._ask_engine(index, request, ask)
        finally:
            self._loads[index] -= weight
            del self._flying[request.id]
        self._remember(session, self._home(index, tokens + count_tokens(answer)))
        return answer

    async def abort(self, request_id: str) -> None:
        if (index := self._flying.get(request_id)) is not None:
            await self._engines[index].abort(request_id)

    async def pause(self) -> None:
        """Pause every engine, or none: where one cannot, the others are resumed."""
        try:
            await self._ask_each(lambda engine: engine.pause())
        except BaseException:
            # Why they are not paused counts, and not that one did not resume either.
            resuming = (engine.resume() for engine in self._engines)
            await await_to_the_end(asyncio.gather(*resuming, return_exceptions=True))
            raise

    async def resume(self) -> None:
        """Resume every engine, then raise what kept one from it."""
        await await_all(engine.resume() for engine in self._engines)

    async def load(self, weights: Any, version: int) -> None:
        """Load every engine; their caches are gone, and trajectories find new homes.

        Where one cannot, the other loads are cancelled and have ended when this raises.
        """
        try:
            await self._ask_each(lambda engine: engine.load(weights, version))
        finally:
            self._homes.clear()

    async def prepare(self, weights: Any) -> Any:
        """Return the weights: whoever gives them leaves them alone until the roll has ended."""
        return weights

    async def roll(self, prepared: Any, version: int) -> None:
        """Load the engines one after the other, the least busy of those left first.

        The others sample meanwhile, so versions are mixed: new trajectories go to the freshest,
        others stay where their cache is until its engine's turn comes.
        """
        indices = set(range(len(self._engines)))
        try:
            while indices:
                self._loading = min(indices, key=lambda index: (self._loads[index], index))
                indices.discard(self._loading)
                await self._engines[self._loading].load(prepared, version)
        finally:
            self._loading = None

    async def close(self) -> None:
        """Close every engine, then raise what kept one from it. Idempotent."""
        await close_all(self._engines)

    async def _ask_each(self, ask: Callable[[PolicyEngine], Coroutine[Any, Any, None]]) -> None:
        """Ask all engines at once; the first error, or a cancellation, ends the other calls."""
        with first_error():
            async with asyncio.TaskGroup() as calls:
                for engine in self._engines:
                    calls.create_task(ask(engine))

    async def _ask_engine(
        self,
        index: int,
        request: GenerateRequest | ScoreRequest,
        ask: Callable[[int], Awaitable[R]],
    ) -> R:
        now_s = asyncio.get_running_loop().time
        self._health[index] = self._health[index].on_request(request.id, now_s())
        try:
            answer = await ask(index)
        except (ValueError, asyncio.CancelledError):
            # The request was wrong, or nobody waits for it any more.
            self._health[index] = self._health[index].on_end(request.id)
            raise
        except Exception:
            self._health[index] = self._health[index].on_failure(request.id, self._rule, now_s())
            self._remember(session_of(request.id), self._home(index, 0, failed=True))
            raise
        self._health[index] = self._health[index].on_answer()
        return answer

    def best(self, request_id: str, tokens: int) -> int:
        """Return which engine a request of so many prompt tokens is for."""
        home = self._homes.get(session_of(request_id))
        weight = request_weight(tokens, base_tokens=self._base_tokens)
        self._requests += 1
        self._weights += weight
        slack = self._weights / self._requests
        among = self._open_to(home)
        if home is not None and home.version != self._engines[home.index].version:
            home = None  # new weights forget what is cached
        if home is None:
            versions = [engine.version for engine in self._engines]
            calm = [index for index in among if index != self._loading] or among
            among = freshest(calm, versions=versions, loads=self._loads, slack=slack)
        return choose_engine(
            self._loads,
            among=among,
            weight=weight,
            home=None if home is None else home.index,
            cached=0.0 if home is None else min(1.0, home.tokens / max(1, tokens)),
            slack=slack,
        )

    def _open_to(self, home: _Home | None) -> Sequence[int]:
        now_s = asyncio.get_running_loop().time()
        well = [i for i, h in enumerate(self._health) if h.state(now_s) in ("up", "due")]
        among = well or [*range(len(self._engines))]
        elsewhere = [i for i in among if home is None or not home.failed or i != home.index]
        return elsewhere or among

    def _home(self, index: int, tokens: int, *, failed: bool = False) -> _Home:
        return _Home(index, tokens, self._engines[index].version, failed=failed)

    def _remember(self, session: str, home: _Home) -> None:
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > MOST_SESSIONS:
            self._homes.popitem(last=False)
