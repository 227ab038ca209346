"""A server of completions as an engine: token ids in, sampled token ids out, whatever it serves.

requests  streams: what has come when one is ended, torn or under old weights stays, and the
          rest is asked for
answers   translated to those of completions by a dialect, and read by
          `completion_reader.CompletionReader`, which takes nothing on trust
weights   those of a subclass: adapters (`adapter_engine`), or whole ones (`weights_engine`)
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from agentrl.engine.endpoint.completion_reader import (
    CompletionReader,
    build_sample_body,
    build_score_body,
)
from agentrl.engine.endpoint.dialects import find_dialect
from agentrl.engine.endpoint.discovery import (
    await_server,
    check_logprobs,
    check_model,
    check_sampling,
)
from agentrl.engine.endpoint.request import EndpointRequest, RetriedCall
from agentrl.engine.endpoint.settings import ServerSettings, is_neutral
from agentrl.engine.request_checks import check_request, check_score
from agentrl.engine.stopping import Decode
from agentrl.errors import EngineError
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.http_endpoint import (
    EndpointRefusedError,
    EndpointUnavailableError,
    HttpEndpointClient,
    RetryPolicy,
)
from agentrl.weight_sync.check import WeightCheck

if TYPE_CHECKING:
    import httpx


@dataclass(slots=True, eq=False)
class ServedVersion:
    """A version of the weights at the server."""

    name: str
    version: int
    folder: Path | None = None
    """Folder of the adapter; None for the base alone."""
    proof: WeightCheck | None = None
    losses: int = 0
    """Number of times the server had forgotten it."""


class ServerEngine(ClosingResource):
    """Samples and scores by a server, token ids in and token ids out."""

    _keeps_requests = False
    """True if requests in flight go on at the server while it takes new weights."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        decode: Decode | None = None,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`async with` asks the server what it is; `decode` reads stop strings.

        `transport` is httpx's own unless given. Raises `ConfigError` where httpx is missing.
        """
        self._settings = settings
        self._endpoint = settings.endpoint
        self._dialect = find_dialect(settings.api)
        self._decode = decode
        self._client = HttpEndpointClient(
            self._endpoint, first_wait_s=first_wait_s, transport=transport
        )
        self._held = ServedVersion(settings.model, 0)
        self._errands: dict[str, RetriedCall[Any]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._whole = asyncio.Event()
        """Set while the server's weights are those of one version."""
        self._whole.set()
        self._loading = asyncio.Lock()
        self._processed = False
        self._open = True
        self._lost: EngineError | None = None
        self._numbers = count(1)

    @property
    def version(self) -> int:
        """Version of the weights loaded last; 0 is what the server began with."""
        return self._held.version

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn. Entropies are not known here and left out.

        Raises `EngineLost` where the server is gone, `ConfigError` for what it answers that no
        server that can be trained from does, and `ValueError` as `check_request` does.
        """
        settings = self._settings
        check_request(
            request,
            context_tokens=settings.context_tokens,
            vocabulary=settings.vocabulary,
            in_flight=self._errands,
            reads_text=self._decode is not None,
        )
        check_sampling(request.sampling, settings, processed=self._processed)
        room = settings.context_tokens - len(request.prompt)
        flight = EndpointRequest(request, min(request.max_new_tokens, room))
        await self._run_call(request.id, RetriedCall(lambda: self._sample_rest(flight)))
        return flight.completion(flight.finish or "aborted")

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens with the weights, all under one version.

        Raises `ValueError` for what a server does not tell: entropies, whole distributions, and
        scores under a temperature, top-k or top-p; else as `generate` does.
        """
        settings = self._settings
        check_score(
            request,
            # A server samples one token more, and has no other way to score a prompt.
            context_tokens=settings.context_tokens - 1,
            vocabulary=settings.vocabulary,
            in_flight=self._errands,
        )
        if request.entropies or request.distribution or not is_neutral(request.sampling):
            raise ValueError(
                f"request {request.id!r} asks for entropies, a full distribution, or a "
                "distribution other than the softmax of the logits, but a server only scores "
                "tokens; use engine.kind: local"
            )
        scores = await self._run_call(
            request.id, RetriedCall(lambda: self._score_until_done(request))
        )
        return scores or Scores(logprobs=(), version=self.version)

    async def abort(self, request_id: str) -> None:
        if (errand := self._errands.get(request_id)) is not None:
            errand.end()

    async def pause(self) -> None:
        if self._resumed.is_set():
            self._resumed.clear()
            self._end_all()

    async def resume(self) -> None:
        self._resumed.set()

    @abstractmethod
    async def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Have the server take weights, as `PolicyEngine.load` does."""

    def fail(self, error: EngineError) -> None:
        """End every request with an error, and each that comes: the server is gone."""
        self._lost = error
        for errand in self._errands.values():
            errand.fail(error)

    async def close(self) -> None:
        """End every request as aborted, and hang up. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._resumed.set()
        self._end_all()
        await self.release()
        await self._client.close()

    async def release(self) -> None:
        """Give back what the server and this machine hold for the engine."""

    async def __aenter__(self) -> Self:
        settings = self._settings
        try:
            if settings.api != "sglang":
                check_model(await await_server(self._client, settings), settings)
            self._processed = await check_logprobs(self._client, settings)
            for sampling in settings.samplings:
                check_sampling(sampling, settings, processed=self._processed)
        except BaseException:
            await self.close()
            raise
        return self

    # --- requests ---------------------------------------------------------------------------------

    async def _await_turn(self) -> None:
        """Wait until requests may be sent."""
        while not (self._resumed.is_set() and self._whole.is_set()):
            await self._resumed.wait()
            await self._whole.wait()

    async def _recover(
        self, held: ServedVersion, losses: int, error: EndpointRefusedError, patience: RetryPolicy
    ) -> None:
        """Make good what the server refused a request for, or raise the refusal."""
        raise error

    async def _run_call(self, id: str, errand: RetriedCall[Any]) -> Any:
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        if self._lost is not None:
            raise self._lost
        self._errands[id] = errand
        try:
            return await errand.run()
        finally:
            del self._errands[id]

    def _end_all(self) -> None:
        for errand in self._errands.values():
            errand.end()

    async def _sample_rest(self, flight: EndpointRequest) -> bool:
        patience = self._client.patience()
        while flight.finish is None:
            await self._await_turn()
            served_version = self._held
            losses = served_version.losses
            try:
                await self._read_stream(flight, served_version, patience)
            except EndpointUnavailableError as error:
                if flight.finish is None:
                    await patience.wait(error, of=self._endpoint)
            except EndpointRefusedError as error:
                await self._recover(served_version, losses, error, patience)
        return True

    async def _read_stream(
        self, flight: EndpointRequest, held: ServedVersion, patience: RetryPolicy
    ) -> None:
        request, context = flight.request, flight.context
        token_budget = flight.max_tokens - len(flight.logprobs)
        body = build_sample_body(request, context, model=held.name, max_tokens=token_budget)
        translate = self._dialect.open_answer(context)
        flight.answer_start = len(flight.logprobs)
        reading = CompletionReader(
            str(self._endpoint),
            context,
            vocabulary=self._settings.vocabulary,
            sampling=request.sampling,
            top_logprobs=request.top_logprobs,
        )
        path, body = self._dialect.path, self._dialect.write_body(body)
        async with aclosing(self._client.events(path, body)) as events:
            async for event in events:
                piece = reading.piece(translate(event))
                flight.take(
                    # The request may go on over new weights: what comes is of those held by now.
                    piece,
                    version=self._held.version if self._keeps_requests else held.version,
                    decode=self._decode,
                    server=str(self._endpoint),
                )
                if piece.tokens:
                    patience.progress()
                if flight.finish is not None and piece.tokens and piece.finish is None:
                    return  # a stop string, which the server knows nothing of
        if flight.finish is None:
            raise EndpointUnavailableError(
                f"the stream ended after {len(flight.logprobs)} tokens without a finish reason"
            )

    async def _score_until_done(self, request: ScoreRequest) -> Scores:
        patience = self._client.patience()
        while True:
            await self._await_turn()
            served_version = self._held
            losses = served_version.losses
            try:
                return await self._scores(request, served_version)
            except EndpointRefusedError as error:
                await self._recover(served_version, losses, error, patience)

    async def _scores(self, request: ScoreRequest, held: ServedVersion) -> Scores:
        """Return the scores of one version, whether or not it is the newest."""
        whole, at = request.prompt + request.token_ids, len(request.prompt)
        reading = CompletionReader(str(self._endpoint), whole, vocabulary=self._settings.vocabulary)
        body = build_score_body(whole, model=held.name, top_logprobs=request.top_logprobs)
        answer = await self._client.ask(self._dialect.path, self._dialect.write_body(body))
        rows = reading.scores(self._dialect.open_answer(whole)(answer))[at - 1 :]
        most = request.top_logprobs
        return Scores(
            logprobs=tuple(
                min(0.0, row[t]) for row, t in zip(rows, request.token_ids, strict=True)
            ),
            version=held.version,
            top_logprobs=tuple(
                tuple(sorted(row.items(), key=lambda pair: -pair[1])[:most]) for row in rows
            )
            if most
            else (),
        )
