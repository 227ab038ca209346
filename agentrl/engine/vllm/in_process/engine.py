"""vLLM behind agentrl's contract: vLLM computes, and versions are stamped here.

vLLM runs in this process and is stepped by a task that exists only while there is something to
compute. A step runs in a thread; requests join and leave, and weights change, between two steps,
so a token's version is that of the weights whose logits it was drawn from.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentrl.engine.in_process import AnyFlight, InProcessEngine
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.stopping import Decode
from agentrl.engine.vllm.in_process.core import VllmCore
from agentrl.engine.vllm.in_process.settings import VllmSettings
from agentrl.engine.vllm.in_process.steps import SampledStep, ScoredRequest
from agentrl.engine.weights import Weights
from agentrl.errors import AgentrlError, EngineError, WeightsUnproven, blame
from agentrl.models.vision.processor import ImageProcessor
from agentrl.policy import GenerateRequest, ScoreRequest
from agentrl.runtime.threads import await_to_the_end
from agentrl.weight_sync.check import CheckedWeights, WeightCheck, complaint

T = TypeVar("T")


class VllmEngine(InProcessEngine):
    """Samples many turns at once with vLLM. All calls belong to one event loop at a time."""

    task_name = "agentrl-vllm"
    blamed = "vLLM's step"

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
        self._core = VllmCore(settings, images)
        super().__init__(
            version=version,
            context_tokens=settings.context_tokens,
            score_tokens=settings.context_tokens,
            vocabulary=self._core.vocabulary,
            decode=decode,
            images=self._core.images,
        )
        self._fresh: list[str] = []
        self._gone: list[str] = []
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(
            1, thread_name_prefix="agentrl-vllm"
        )
        self._turn = asyncio.Lock()

    @property
    def in_flight(self) -> tuple[AnyFlight, ...]:
        """Return the requests that are not answered yet."""
        return tuple(self._flights.values())

    async def load(self, weights: Weights, version: int) -> None:
        """Take new weights (a state dict with Hugging Face names, or a folder of safetensors).

        Requests in flight go on: what they have is computed again under the new weights, and their
        next tokens carry the new version. Weights that vLLM refuses break the engine, and so do
        weights with a proof (`CheckedWeights`) that it does not reproduce: `WeightsUnproven`. A
        cancelled load goes on to its end: half of it would be no version.
        """
        self._check_usable()
        async with self._turn:
            await await_to_the_end(self._load_and_check(weights, version))

    async def _load_and_check(self, weights: Weights, version: int) -> None:
        try:
            with blame(EngineError, "vLLM's new weights"):
                await self._run_in_thread(lambda: self._core.load(weights))
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
        await super().close()
        async with self._turn:
            if self._thread is not None:
                await self._run_in_thread(self._core.close)
                self._thread.shutdown()
                self._thread = None

    # --- the loop ---------------------------------------------------------------------------------

    async def _compute(self) -> None:
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

        for result in await self._run_in_thread(step):
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
        if (finish := flight.find_finish(self._decode)) is not None:
            self._end(drawn.request_id, finish)

    async def _run_in_thread(self, function: Callable[[], T]) -> T:
        if self._thread is None:
            raise EngineError("the engine is closed; create a new one")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _new_key(self) -> str:
        return self._core.new_name()

    def _enqueue(self, key: str, flight: AnyFlight) -> None:
        self._fresh.append(key)

    def _release(self, key: str, flight: AnyFlight) -> None:
        self._gone.append(key)  # vLLM hears of it before its next step

    def _validate_request(self, request: GenerateRequest | ScoreRequest) -> None:
        """Raise `ValueError` for images that are not where they are said to be, `EnvError` for what
        is no image.

        Images are cut up here, so what is wrong with one is told to who shows it.
        """
        if (images := self._core.images) is None or not request.images:
            return
        images.check_spans(request.prompt, request.images)
        for span in request.images:
            images.patches(span.image)
