"""An engine that plays replies given to it. It needs no model, and keeps every promise of one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.engine.request_checks import check_budget, check_id, check_room
from agentrl.errors import EngineError
from agentrl.policy import Completion, FinishReason, GenerateRequest

Reply = Callable[[GenerateRequest], Sequence[int]]
"""Function of a request that returns the reply as token ids; the rest of a turn whose first tokens
end the prompt."""
Logprob = Callable[[GenerateRequest, int, int], float]
"""Function of a request, a place in its completion and the token id there that returns a log-prob;
or an entropy. Both are in nats."""


@dataclass(slots=True, eq=False)
class _Turn:
    request: GenerateRequest
    script: tuple[int, ...]
    aborted: asyncio.Event
    spoken: int = 0


class ScriptedEngine:
    """Plays one token per turn of the event loop, so that requests overlap as they really do.

    A request aborted half-way and asked again with its partial tokens continues its reply, as a
    real engine would. It remembers its own requests alone: a turn that another process began is
    for the replies to continue. Ends with `stop` on a stop token, else with `length` at the
    budget; a reply that simply runs out ends with `stop`. Stop strings are ignored: there is no
    text.

    Args:
        replies: Function from request to reply, or a mapping from prompt to reply, both as token
            ids.
        logprob: Log-prob of every token in nats, or a function of a request, the place in the
            completion and the token id.
        entropy: Entropy at every token in nats, or such a function.
        token_s: Time that a token takes.
        context_tokens: Length of the context; None has no end.
        version: Version of the weights before anything is loaded.
    """

    def __init__(
        self,
        replies: Reply | Mapping[tuple[int, ...], Sequence[int]],
        *,
        logprob: float | Logprob = -1.0,
        entropy: float | Logprob = 1.0,
        token_s: float = 0.0,
        context_tokens: int | None = None,
        version: int = 0,
    ) -> None:
        self._replies = replies
        self._logprob = logprob
        self._entropy = entropy
        self._token_s = token_s
        self._context_tokens = context_tokens
        self._version = version
        self._turns: dict[str, _Turn] = {}
        self._unsaid: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        self._taking = asyncio.Event()
        self._taking.set()
        self._open = True
        self.requests: list[GenerateRequest] = []
        """Every request in the order it came."""
        self.loads: list[tuple[Any, int]] = []
        """Loaded weights, with their versions."""

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        return self._version

    async def generate(self, request: GenerateRequest) -> Completion:
        """Play the reply to a request.

        Raises:
            ValueError: The prompt leaves no room, nothing may be sampled, or the id is in flight
                already.
            EngineError: The engine is closed, or the mapping has no reply to this prompt.
        """
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        room = self._room(request)
        check_id(request.id, self._turns)
        self.requests.append(request)
        turn = _Turn(request, self._script(request), asyncio.Event())
        self._turns[request.id] = turn
        try:
            return await self._play(turn, room)
        finally:
            del self._turns[request.id]

    async def abort(self, request_id: str) -> None:
        """End a request now; an id that is not in flight is ignored."""
        if (turn := self._turns.get(request_id)) is not None:
            turn.aborted.set()

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        self._taking.clear()
        self._abort_all()

    async def resume(self) -> None:
        """Take requests again."""
        self._taking.set()

    async def load(self, weights: Any, version: int) -> None:
        """Remember the weights and stamp the version on every token from now on."""
        self.loads.append((weights, version))
        self._version = version

    async def close(self) -> None:
        """End every request as aborted. Idempotent."""
        self._open = False
        self._abort_all()

    async def _play(self, turn: _Turn, room: int) -> Completion:
        request, versions = turn.request, list[int]()
        finish: FinishReason | None = None
        await self._wait_taking(turn)
        while finish is None:
            await asyncio.sleep(self._token_s)
            if turn.aborted.is_set():
                finish = "aborted"
                break
            if turn.spoken == len(turn.script):
                finish = "stop"
                break
            token = turn.script[turn.spoken]
            turn.spoken += 1
            versions.append(self._version)
            if token in request.stop_token_ids:
                finish = "stop"
            elif turn.spoken == room:
                finish = "length"
        if finish == "aborted":
            self._remember(turn)
        return self._completion(turn, tuple(versions), finish)

    async def _wait_taking(self, turn: _Turn) -> None:
        if self._taking.is_set():
            return
        waits = [asyncio.ensure_future(e.wait()) for e in (self._taking, turn.aborted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _completion(
        self, turn: _Turn, versions: tuple[int, ...], finish: FinishReason
    ) -> Completion:
        tokens = turn.script[: turn.spoken]
        logprobs = tuple(
            self._read_figure(self._logprob, turn.request, i, t) for i, t in enumerate(tokens)
        )
        top = tuple(((t, x),) for t, x in zip(tokens, logprobs, strict=True))
        entropies = tuple(
            self._read_figure(self._entropy, turn.request, i, t) for i, t in enumerate(tokens)
        )
        return Completion(
            token_ids=tokens,
            logprobs=logprobs,
            versions=versions,
            finish=finish,
            top_logprobs=top if turn.request.top_logprobs else (),
            entropies=entropies if turn.request.entropies else (),
        )

    def _read_figure(
        self, figure: float | Logprob, request: GenerateRequest, place: int, token: int
    ) -> float:
        if request.sampling.temperature == 0:
            return 0.0
        return figure if isinstance(figure, float | int) else figure(request, place, token)

    def _script(self, request: GenerateRequest) -> tuple[int, ...]:
        unsaid = self._unsaid.pop((request.prompt, request.seed), None)
        if unsaid is not None:
            return unsaid
        if not isinstance(self._replies, Mapping):
            return tuple(self._replies(request))
        if request.prompt not in self._replies:
            raise EngineError(
                f"request {request.id!r}: the script has no reply to prompt {request.prompt}; it "
                f"answers {len(self._replies)} prompts"
            )
        return tuple(self._replies[request.prompt])

    def _remember(self, turn: _Turn) -> None:
        output, unsaid = turn.script[: turn.spoken], turn.script[turn.spoken :]
        self._unsaid[turn.request.prompt + output, turn.request.seed] = unsaid

    def _abort_all(self) -> None:
        for turn in self._turns.values():
            turn.aborted.set()

    def _room(self, request: GenerateRequest) -> int:
        check_budget(request)
        if self._context_tokens is None:
            return request.max_new_tokens
        check_room(request, self._context_tokens)
        return min(self._context_tokens - len(request.prompt), request.max_new_tokens)
