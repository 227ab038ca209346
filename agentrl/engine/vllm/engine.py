"""vLLM behind agentrl's contract: vLLM computes, and versions are stamped here.

vLLM runs in this process and is stepped by a task that exists only while there is something to
compute. A step runs in a thread; requests join and leave, and weights change, between two steps,
so a token's version is that of the weights whose logits it was drawn from.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.request_checks import check_request, check_score
from agentrl.engine.stopping import Decode
from agentrl.engine.vllm.core import VllmCore
from agentrl.engine.vllm.settings import VllmSettings
from agentrl.engine.vllm.vllm_sampler import AnyFlight, SampledStep, ScoredRequest
from agentrl.engine.weights import Weights
from agentrl.errors import AgentrlError, EngineError, WeightsUnproven, blame
from agentrl.models.vision.processor import ImageProcessor
from agentrl.policy import Completion, FinishReason, GenerateRequest, ScoreRequest, Scores
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.threads import await_to_the_end
from agentrl.weight_sync.check import CheckedWeights, WeightCheck, complaint

T = TypeVar("T")


class VllmEngine(ClosingResource):
    """Samples many turns at once with vLLM. All calls belong to one event loop at a time."""

    def __init__(
        self,
        settings: VllmSettings,
        *,
        decode: Decode | None = None,
        images: ImageProcessor | None = None,
        version: int = 0,
    ) -> None:
        """Load the model; `decode` turns token ids into text and is needed for stop strings, and
        `images` cuts up images for a model that sees, by default as its folder says."""
        self._settings = settings
        self._core = VllmCore(settings, images)
        self._decode = decode
        self._version = version
        self._flights: dict[str, AnyFlight] = {}
        self._names: dict[str, str] = {}
        """The name each flight has in vLLM: an id may come again before vLLM has let go of it."""
        self._fresh: list[str] = []
        self._gone: list[str] = []
        self._requests = 0
        self._loop: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(
            1, thread_name_prefix="agentrl-vllm"
        )
        self._turn = asyncio.Lock()
        self._open = True
        self._paused = False
        self._preparing: set[str] = set()
        """Requests whose images are being cut up."""
        self._broken: EngineError | None = None

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        return self._version

    @property
    def in_flight(self) -> tuple[AnyFlight, ...]:
        """Return the requests that are not answered yet."""
        return tuple(self._flights.values())

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn. Cancelling the caller frees the request and returns nothing.

        Raises `ValueError` for a request that cannot be served, `EngineError` when the engine is
        closed or broken.
        """
        if not await self._prepare(request):
            return Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")
        self._check_usable()
        check_request(
            request,
            context_tokens=self._settings.context_tokens,
            vocabulary=self._core.vocabulary,
            in_flight=self._names,
            reads_text=self._decode is not None,
            takes_images=self._core.images is not None,
        )
        self._core.check(request)
        self._check_shown(request)
        flight = InflightRequest(
            request,
            asyncio.get_running_loop().create_future(),
            self._requests,
            min(request.max_new_tokens, self._settings.context_tokens - len(request.prompt)),
        )
        name = self._add(flight)
        try:
            return await flight.reply
        finally:
            self._forget(name)

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens with the weights, in one pass over them and their prompt.

        Whatever ends a request early ends it with empty log-probs. Raises as `generate` does.
        """
        if not await self._prepare(request):
            return Scores(logprobs=(), version=self._version)
        self._check_usable()
        check_score(
            request,
            context_tokens=self._core.score_tokens,
            vocabulary=self._core.vocabulary,
            in_flight=self._names,
            takes_images=self._core.images is not None,
        )
        self._core.check(request)
        self._check_shown(request)
        flight = InflightScoreRequest(
            request, asyncio.get_running_loop().create_future(), self._requests
        )
        name = self._add(flight)
        try:
            return await flight.reply
        finally:
            self._forget(name)

    async def abort(self, request_id: str) -> None:
        """End a request now: its `generate` returns what it has, `finish="aborted"`."""
        self._preparing.discard(request_id)
        if (name := self._names.get(request_id)) is not None:
            self._end(name, "aborted")

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        self._paused = True
        self._end_all()

    async def resume(self) -> None:
        """Take requests again."""
        self._paused = False
        self._wake()

    async def load(self, weights: Weights, version: int) -> None:
        """Take new weights (a state dict with Hugging Face names, or a folder of safetensors).

        Requests in flight go on: what they have is computed again under the new weights, and their
        next tokens carry the new version. Weights that vLLM refuses break the engine, and so do
        weights with a proof (`CheckedWeights`) that it does not reproduce: `WeightsUnproven`. A
        cancelled load goes on to its end: half of it would be no version.
        """
        self._check_usable()
        async with self._turn:
            await await_to_the_end(self._loaded(weights, version))

    async def _loaded(self, weights: Weights, version: int) -> None:
        try:
            with blame(EngineError, "vLLM's new weights"):
                await self._in_thread(lambda: self._core.load(weights))
                self._version = version
                if isinstance(weights, CheckedWeights):
                    await self._check_weights(weights.proof)
        except AgentrlError as error:
            self._break(error)
            raise

    async def _check_weights(self, proof: WeightCheck) -> None:
        """Score the tokens of a proof, also while paused; `WeightsUnproven` where they differ."""
        request = proof.request(f"weight check {self._version}")
        flight = InflightScoreRequest(
            request, asyncio.get_running_loop().create_future(), self._requests
        )
        self._add(flight)
        while not flight.reply.done():
            await self._step_alone()
        reason = complaint(proof, flight.reply.result(), version=self._version)
        if reason is not None:
            raise WeightsUnproven(
                f"vLLM was given version {self._version} of the weights but computes something "
                f"else: {reason}"
            )

    async def close(self) -> None:
        """End every request as aborted and release the model. Idempotent."""
        self._open = False
        self._end_all()
        if self._loop is not None and not self._loop.done():
            await asyncio.wait([self._loop])
        async with self._turn:
            if self._thread is not None:
                await self._in_thread(self._core.close)
                self._thread.shutdown()
                self._thread = None

    # --- the loop ---------------------------------------------------------------------------------

    def _add(self, flight: AnyFlight) -> str:
        """Take a request, and return its name."""
        self._requests += 1
        name = self._core.new_name()
        self._flights[name] = flight
        self._names[flight.request.id] = name
        self._fresh.append(name)
        self._wake()
        return name

    def _wake(self) -> None:
        idle = self._loop is None or self._loop.done()
        if idle and self._flights and not self._paused:
            self._loop = asyncio.get_running_loop().create_task(self._run(), name="agentrl-vllm")

    async def _run(self) -> None:
        """Step until nothing is left to compute. Whatever happens, nobody is left waiting."""
        try:
            while self._flights and not self._paused:
                with blame(EngineError, "vLLM's step"):
                    await self._step()
        except AgentrlError as error:
            self._break(error)
        except asyncio.CancelledError:
            self._end_all()
            raise

    async def _step(self) -> None:
        async with self._turn:
            await self._step_alone()

    async def _step_alone(self) -> None:
        """Compute once; the caller holds the turn."""
        stale_ids, self._gone = self._gone, []
        fresh, self._fresh = [n for n in self._fresh if n in self._flights], []
        flights = [(name, self._flights[name]) for name in fresh]

        def step() -> list[SampledStep | ScoredRequest]:
            self._core.drop(stale_ids)
            for name, flight in flights:
                self._core.add(name, flight)
            return self._core.step(self._version)

        for result in await self._in_thread(step):
            self._take(result)

    def _take(self, drawn: SampledStep | ScoredRequest) -> None:
        if (flight := self._flights.get(drawn.request_id)) is None:
            return  # it was ended while the step was under way
        if isinstance(drawn, ScoredRequest) or isinstance(flight, InflightScoreRequest):
            self._end(drawn.request_id, "stop")
            return
        if flight.cached_tokens is None:
            flight.cached_tokens = drawn.cached_tokens
        flight.take(drawn.pick, version=self._version)
        if (finish := flight.finish(self._decode)) is not None:
            self._end(drawn.request_id, finish)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self._thread is None:
            raise EngineError("the engine is closed; create a new one")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    # --- ends -------------------------------------------------------------------------------------

    def _end(self, name: str, finish: FinishReason) -> None:
        flight = self._flights[name]
        self._forget(name)
        flight.end(finish)

    def _end_all(self) -> None:
        self._preparing.clear()
        for name in list(self._flights):
            self._end(name, "aborted")

    def _forget(self, name: str) -> None:
        """Let go of a request now; vLLM hears of it before its next step."""
        if (flight := self._flights.pop(name, None)) is None:
            return
        if self._names.get(flight.request.id) == name:
            del self._names[flight.request.id]
        self._gone.append(name)

    def _break(self, error: AgentrlError) -> None:
        self._broken = EngineError(f"{error}; the engine is broken, create a new one")
        self._broken.__cause__ = error
        for name, flight in list(self._flights.items()):
            self._forget(name)
            if not flight.reply.done():
                flight.reply.set_exception(EngineError(str(error)))

    # --- checks -----------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if not self._open:
            raise EngineError("the engine is closed; create a new one")

    async def _prepare(self, request: GenerateRequest | ScoreRequest) -> bool:
        """Cut up the images of a request; return False for one that was ended meanwhile."""
        if self._core.images is None or not request.images:
            return True
        self._preparing.add(request.id)
        try:
            await self._core.images.prepare(request.images)
            return request.id in self._preparing
        finally:
            self._preparing.discard(request.id)

    def _check_shown(self, request: GenerateRequest | ScoreRequest) -> None:
        """Raise `ValueError` for images that are not where they are said to be, `EnvError` for
        what is no image.

        Images are cut up here, so what is wrong with one is told to who shows it.
        """
        if (images := self._core.images) is None or not request.images:
            return
        images.check_spans(request.prompt, request.images)
        for span in request.images:
            images.patches(span.image)
