"""A server that somebody else started, as a policy engine that scores and takes adapters.

weights   each version is an adapter of a name of its own, which a request names: so every token
          is of the version that it carries, whatever the server does meanwhile
requests  streams: what has come when one is ended, torn or under old weights stays, and the
          rest is asked for
answers   read by `completion_reader.CompletionReader`, which takes nothing on trust
"""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from agentrl.engine.endpoint.adapters import write_adapter
from agentrl.engine.endpoint.completion_reader import (
    CompletionReader,
    build_sample_body,
    build_score_body,
)
from agentrl.engine.endpoint.discovery import (
    await_server,
    check_logprobs,
    check_model,
    check_sampling,
)
from agentrl.engine.endpoint.request import EndpointRequest, RetriedCall
from agentrl.engine.endpoint.settings import ServerSettings, is_neutral
from agentrl.engine.replicas import ReplicatedEngine
from agentrl.engine.request_checks import check_request, check_score
from agentrl.engine.stopping import Decode
from agentrl.errors import ConfigError, EngineError, EngineLost, WeightsUnproven
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.http_endpoint import (
    EndpointRefusedError,
    EndpointUnavailableError,
    HttpEndpointClient,
    RetryPolicy,
)
from agentrl.runtime.threads import finish_in_thread, run_in_thread
from agentrl.weight_sync.adapters import AdapterWeights, find_adapters
from agentrl.weight_sync.check import TRIES, CheckedWeights, WeightCheck, complaint

if TYPE_CHECKING:
    import httpx

UNLOAD_S = 30.0
"""Deadline of letting go of an adapter, which the server may as well keep."""


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


class CompletionsEngine(ClosingResource):
    """Samples and scores by a server's `completions`, token ids in and token ids out."""

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
        self._decode = decode
        self._client = HttpEndpointClient(
            self._endpoint, first_wait_s=first_wait_s, transport=transport
        )
        self._held = ServedVersion(settings.model, 0)
        self._before: ServedVersion | None = None
        self._errands: dict[str, RetriedCall[Any]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._loading = asyncio.Lock()
        # A server may go on with what it knew under a name, so that none is used twice.
        self._name = f"agentrl-{secrets.token_hex(6)}"
        self._folder = settings.adapters.absolute() / self._name
        self._made_parent = False
        self._processed = False
        self._open = True
        self._numbers = count(1)

    @property
    def version(self) -> int:
        """Version of the weights loaded last; 0 is the base alone."""
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

    async def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take a base with adapters, of which the server is given the adapters.

        Requests in flight go on under the new version; what they have keeps the old one. With a
        proof (`CheckedWeights`) the server scores its tokens first, and requests meet the new
        version only when it agrees. Raises `WeightsUnproven` where it does not after another try,
        or is late, and `ConfigError` for weights that are no adapters, and where the server takes
        none; then the old version stays.
        """
        adapted = find_adapters(weights)
        if adapted is None:
            raise ConfigError(
                "a server of engine.kind endpoint accepts adapters, but these are full weights; "
                "set learn.lora"
            )
        proof = weights.proof if isinstance(weights, CheckedWeights) else None
        async with self._loading:
            new = await self._load_version(adapted, version, proof)
            old, self._held = self._held, new
            for errand in self._errands.values():
                errand.restart()
            await self._unload_adapter(old)
            before, self._before = self._before, old
            # The server may still be at a step of the last version: its folder stays until now.
            if before is not None and before.folder is not None:
                await run_in_thread(shutil.rmtree, before.folder, ignore_errors=True)

    async def close(self) -> None:
        """End every request as aborted; adapters and their folder are gone. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._resumed.set()
        self._end_all()
        await self._unload_adapter(self._held)
        await self._client.close()
        await finish_in_thread(self._clear)

    async def __aenter__(self) -> Self:
        settings = self._settings
        try:
            check_model(await await_server(self._client, settings), settings)
            self._processed = await check_logprobs(self._client, settings)
            for sampling in settings.samplings:
                check_sampling(sampling, settings, processed=self._processed)
            self._made_parent = not settings.adapters.exists()
        except BaseException:
            await self.close()
            raise
        return self

    # --- requests ---------------------------------------------------------------------------------

    async def _run_call(self, id: str, errand: RetriedCall[Any]) -> Any:
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
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
            await self._resumed.wait()
            served_version = self._held
            losses = served_version.losses
            try:
                await self._read_stream(flight, served_version, patience)
            except EndpointUnavailableError as error:
                if flight.finish is None:
                    await patience.wait(error, of=self._endpoint)
            except EndpointRefusedError as error:
                await self._reload_adapter(served_version, losses, error, patience)
        return True

    async def _read_stream(
        self, flight: EndpointRequest, held: ServedVersion, patience: RetryPolicy
    ) -> None:
        request, context = flight.request, flight.context
        token_budget = flight.max_tokens - len(flight.logprobs)
        body = build_sample_body(request, context, model=held.name, max_tokens=token_budget)
        reading = CompletionReader(
            str(self._endpoint),
            context,
            vocabulary=self._settings.vocabulary,
            sampling=request.sampling,
            top_logprobs=request.top_logprobs,
        )
        async with aclosing(self._client.events("completions", body)) as events:
            async for event in events:
                piece = reading.piece(event)
                flight.take(
                    piece, version=held.version, decode=self._decode, server=str(self._endpoint)
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
            await self._resumed.wait()
            served_version = self._held
            losses = served_version.losses
            try:
                return await self._scores(request, served_version)
            except EndpointRefusedError as error:
                await self._reload_adapter(served_version, losses, error, patience)

    async def _scores(self, request: ScoreRequest, held: ServedVersion) -> Scores:
        """Return the scores of one version, whether or not it is the newest."""
        whole, at = request.prompt + request.token_ids, len(request.prompt)
        reading = CompletionReader(str(self._endpoint), whole, vocabulary=self._settings.vocabulary)
        body = build_score_body(whole, model=held.name, top_logprobs=request.top_logprobs)
        rows = reading.scores(await self._client.ask("completions", body))[at - 1 :]
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

    # --- weights ----------------------------------------------------------------------------------

    async def _load_version(
        self, weights: AdapterWeights, version: int, proof: WeightCheck | None
    ) -> ServedVersion:
        why = ""
        for _ in range(TRIES):
            name = f"{self._name}-{next(self._numbers)}-version-{version}"
            folder = self._folder / name
            new = ServedVersion(name, version, folder, proof)
            try:
                await finish_in_thread(write_adapter, weights, folder)
                why = await self._load_adapter(new)
            except BaseException:
                await self._discard_version(new)
                raise
            if not why:
                return new
            await self._discard_version(new)
        raise WeightsUnproven(
            f"{self._endpoint} did not load version {version} of the weights after {TRIES} tries: "
            f"{why}"
        )

    async def _load_adapter(self, new: ServedVersion) -> str:
        """Have the server load an adapter and prove it; return what is wrong with it then."""
        proof = new.proof
        deadline_s = None if proof is None else proof.deadline_s
        doing = "loading"
        try:
            async with asyncio.timeout(deadline_s):
                await self._post_adapter(new)
            if proof is None:
                return ""
            doing = f"scoring {len(proof.logprobs)} tokens"
            async with asyncio.timeout(deadline_s):
                request = proof.request(f"proof/{next(self._numbers)}")
                scores = await self._scores(request, new)
        except TimeoutError as error:
            raise WeightsUnproven(
                f"{self._endpoint} did not load version {new.version} of the weights: {doing} took "
                f"longer than {deadline_s:g} s (engine.probe.deadline_s)"
            ) from error
        return complaint(proof, scores, version=new.version) or ""

    async def _post_adapter(self, new: ServedVersion) -> None:
        payload = {"lora_name": new.name, "lora_path": str(new.folder)}
        try:
            await self._client.tell("load_lora_adapter", payload)
        except EngineLost:
            raise
        except (EngineError, ConfigError) as error:
            if "already been loaded" in str(error):
                return  # an answer that was lost on its way
            raise ConfigError(
                f"{self._endpoint} rejects the adapter in {new.folder}: {error}; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank of at least "
                "learn.lora.rank, on a machine that can read engine.endpoint.adapters"
            ) from error

    async def _reload_adapter(
        self, held: ServedVersion, losses: int, error: EndpointRefusedError, patience: RetryPolicy
    ) -> None:
        """Give a server that was started anew what it had; raises the error for any other, and
        `EngineLost` for one that goes on forgetting it."""
        if error.status != 404 or held.folder is None:
            raise error
        async with self._loading:
            if self._held is held and held.losses == losses:
                if why := await self._load_adapter(held):
                    raise WeightsUnproven(
                        f"{self._endpoint} lost version {held.version} of the weights, and loading "
                        f"it again failed: {why}"
                    )
                held.losses += 1
        forgotten = f"it loads version {held.version} of the weights and loses it again: {error}"
        await patience.wait(EndpointUnavailableError(forgotten), of=self._endpoint)

    async def _discard_version(self, new: ServedVersion) -> None:
        await self._unload_adapter(new)
        if new.folder is not None:
            await finish_in_thread(shutil.rmtree, new.folder, ignore_errors=True)

    async def _unload_adapter(self, held: ServedVersion) -> None:
        """Have the server forget an adapter; one that cannot be asked has forgotten it already."""
        if held.folder is None:
            return
        with contextlib.suppress(EngineError, ConfigError, TimeoutError):
            async with asyncio.timeout(UNLOAD_S):
                payload = {"lora_name": held.name}
                await self._client.tell("unload_lora_adapter", payload, once=True)

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._made_parent:
            with contextlib.suppress(OSError):
                self._settings.adapters.rmdir()


class EndpointReplicas(ReplicatedEngine[CompletionsEngine]):
    """An `EngineRouter` over servers: each is given every version, and proves it."""

    async def prepare(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights with a copy of their adapters: the trainer goes on with its own."""
        adapted = find_adapters(weights)
        if adapted is None:
            return weights
        copies = {
            name: replace(adapter, a=adapter.a.clone(), b=adapter.b.clone())
            for name, adapter in adapted.adapters.items()
        }
        copy = AdapterWeights(adapted.base, copies)
        return CheckedWeights(copy, weights.proof) if isinstance(weights, CheckedWeights) else copy
