"""A policy engine that only takes time: slots, a decode speed that falls with the batch, prefill.

Every seated request gets the same tokens per second, so one number, the tokens a request seated
since the beginning would have (`_work`), says where each of them is; the next one to end is the top
of a heap.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from agentrl.errors import EngineError
from agentrl.policy import Completion, FinishReason, GenerateRequest
from agentrl.runtime.seeds import derive

TOKEN = 1
"""Token that it samples every time."""
LOGPROB = -1.0
"""Log-prob of `TOKEN`; the other probability is spread evenly over 1 to `MOST_OTHERS` others."""
MOST_OTHERS = 64
NEARLY = 1e-6
"""Tolerance for rounding of the clock, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Speed of an engine."""

    slots: int = 64
    step_s: float = 0.02
    """One decode step with an empty batch."""
    slot_s: float = 0.0002
    """Seconds that each request adds to a decode step."""
    prefill_tokens_per_step: int = 512
    """New prompt tokens that a request computes in the time of one decode step."""
    pause_s: float = 0.2
    load_s: float = 2.0

    def token_s(self, seated: int) -> float:
        """Return the seconds of one decode step with so many requests."""
        return self.step_s + self.slot_s * seated

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second decoded with all slots taken."""
        return self.slots / self.token_s(self.slots)


@dataclass(slots=True, eq=False)
class _Flight:
    request: GenerateRequest
    reply: asyncio.Future[Completion]
    tokens: int
    finish: FinishReason
    begins: float = 0.0
    """Value of the work counter at which its first token is due, less one."""
    seated: bool = False


class SimulatedEngine:
    """Takes the time of a policy engine and says one token over and over.

    So stop tokens and stop strings end nothing, the context has no end, and weights change nothing.
    Each token was drawn, at any temperature but 0, from a made-up distribution that depends on the
    request's seed and on the place in the context: log-probs, alternatives and entropies agree.
    """

    def __init__(
        self,
        speed: EngineSpeed,
        *,
        tokens_left: Callable[[GenerateRequest], int],
        granule_tokens: int = 1,
        version: int = 0,
    ) -> None:
        """Take how long replies are; one simulated token stands for `granule_tokens` real ones."""
        self._speed = speed
        self._tokens_left = tokens_left
        self._granule = granule_tokens
        self._version = version
        self._flights: dict[str, _Flight] = {}
        self._waiting: deque[_Flight] = deque()
        self._ends: list[tuple[float, int, _Flight]] = []
        self._order = 0
        self._seated = 0
        self._work = self._at_s = 0.0
        self._versions = [(0.0, version)]
        self._cached: dict[str, tuple[int, int]] = {}
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._open = True
        self.busy_s = 0.0
        """Seconds at full speed that its work so far would have taken."""
        self.seats: list[tuple[float, int]] = []
        """When the number of seated requests changed, and to what."""

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerateRequest) -> Completion:
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        if request.id in self._flights:
            raise ValueError(
                f"request {request.id!r} is already in flight; give each request its own id"
            )
        turn_tokens = max(1, self._tokens_left(request))
        tokens = min(turn_tokens, request.max_new_tokens)
        flight = _Flight(
            request,
            asyncio.get_running_loop().create_future(),
            tokens,
            "stop" if tokens == turn_tokens else "length",
        )
        self._flights[request.id] = flight
        self._waiting.append(flight)
        self._wake()
        try:
            return await flight.reply
        finally:
            if request.id in self._flights:
                self._end(flight, "aborted")

    async def abort(self, request_id: str) -> None:
        if (flight := self._flights.get(request_id)) is not None:
            self._end(flight, "aborted")

    async def pause(self) -> None:
        self._paused = True
        for flight in list(self._flights.values()):
            self._end(flight, "aborted")
        await asyncio.sleep(self._speed.pause_s)

    async def resume(self) -> None:
        self._paused = False
        self._wake()

    async def load(self, weights: Any, version: int) -> None:
        await asyncio.sleep(self._speed.load_s)
        self.advance()
        self._version = version
        self._versions.append((self._work, version))
        self._cached.clear()

    async def close(self) -> None:
        """End every request as aborted. Idempotent."""
        self._open = False
        for flight in list(self._flights.values()):
            self._end(flight, "aborted")
        if self._timer is not None:
            self._timer.cancel()

    def advance(self) -> None:
        """Bring the counters up to the present."""
        now_s = asyncio.get_running_loop().time()
        if self._seated:
            passed_s = now_s - self._at_s
            decoded = passed_s / (self._speed.token_s(self._seated) * self._granule)
            self._work += decoded
            rate = self._seated / self._speed.token_s(self._seated)
            self.busy_s += passed_s * rate / self._speed.tokens_per_s
        self._at_s = now_s

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self.advance()
        while self._ends and self._ends[0][0] <= self._work + NEARLY:
            _, _, flight = heappop(self._ends)
            if flight.seated:
                self._end(flight, flight.finish)
        self._seat()
        self._set_timer()

    def _seat(self) -> None:
        while self._waiting and self._seated < self._speed.slots and not self._paused:
            flight = self._waiting.popleft()
            if flight.reply.done():
                continue
            flight.seated = True
            flight.begins = self._work + self._prefill(flight.request)
            self._seated += 1
            self._order += 1
            heappush(self._ends, (flight.begins + flight.tokens, self._order, flight))
        if not self.seats or self.seats[-1][1] != self._seated:
            self.seats.append((self._at_s, self._seated))

    def _prefill(self, request: GenerateRequest) -> float:
        session = request.id.rsplit("/", 2)[0]
        cached, version = self._cached.get(session, (0, self._version))
        new = len(request.prompt) - (cached if version == self._version else 0)
        return max(0, new) / self._speed.prefill_tokens_per_step

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and not self._ends[0][2].seated:
            heappop(self._ends)
        if self._ends:
            work = max(0.0, self._ends[0][0] - self._work)
            in_s = work * self._speed.token_s(self._seated) * self._granule
            self._timer = asyncio.get_running_loop().call_later(in_s, self._turn)

    def _end(self, flight: _Flight, finish: FinishReason) -> None:
        del self._flights[flight.request.id]
        self.advance()
        tokens = 0
        if flight.seated:
            progress = int(self._work + NEARLY - flight.begins)
            tokens = (
                flight.tokens if finish != "aborted" else max(0, min(progress, flight.tokens - 1))
            )
            flight.seated = False
            self._seated -= 1
            session = flight.request.id.rsplit("/", 2)[0]
            self._cached[session] = (len(flight.request.prompt) + tokens, self._version)
        if not flight.reply.done():
            drawn = _Drawn(flight.request, tokens)
            flight.reply.set_result(
                Completion(
                    token_ids=(TOKEN,) * tokens,
                    logprobs=(LOGPROB if drawn.is_random else 0.0,) * tokens,
                    versions=self._list_versions(flight, tokens),
                    finish=finish,
                    top_logprobs=drawn.top_logprobs() if flight.request.top_logprobs else (),
                    entropies=drawn.entropies() if flight.request.entropies else (),
                )
            )
        self._wake()

    def _list_versions(self, flight: _Flight, tokens: int) -> tuple[int, ...]:
        if self._versions[-1][0] <= flight.begins:
            return (self._version,) * tokens
        stamps: list[int] = []
        for place in range(1, tokens + 1):
            due = flight.begins + place
            stamps.append(next(v for work, v in reversed(self._versions) if work <= due))
        return tuple(stamps)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The made-up distributions that the tokens of a completion were drawn from."""

    request: GenerateRequest
    tokens: int

    @property
    def is_random(self) -> bool:
        """True when anything was left to chance."""
        return self.request.sampling.temperature > 0

    def top_logprobs(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Return the alternatives of each token, the most likely first."""
        return tuple(tuple(row[: self.request.top_logprobs]) for row in self._build_rows())

    def entropies(self) -> tuple[float, ...]:
        """Return the entropy of each token's distribution, in nats."""
        return tuple(-sum(x * math.exp(x) for _, x in row) for row in self._build_rows())

    def _build_rows(self) -> list[list[tuple[int, float]]]:
        return [self._build_row(len(self.request.prompt) + i) for i in range(self.tokens)]

    def _build_row(self, place: int) -> list[tuple[int, float]]:
        if not self.is_random:
            return [(TOKEN, 0.0)]
        others = 2 ** (derive(self.request.seed, place) % (MOST_OTHERS.bit_length()))
        each = math.log((1 - math.exp(LOGPROB)) / others)
        row = [(TOKEN, LOGPROB), *((TOKEN + 1 + i, each) for i in range(others))]
        return sorted(row, key=lambda entry: -entry[1])
