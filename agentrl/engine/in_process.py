"""Base of the engines in this process: requests in flight, and a task that computes them."""

import asyncio
from abc import abstractmethod
from typing import Any, ClassVar

from agentrl.engine.image_encoder import PromptImages
from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.request_checks import check_request, check_score
from agentrl.engine.stopping import Decode
from agentrl.errors import AgentrlError, EngineError, blame
from agentrl.message import Image
from agentrl.models.vision.processor import ImageProcessor
from agentrl.policy import Completion, FinishReason, GenerateRequest, ScoreRequest, Scores
from agentrl.runtime.closing import ClosingResource

AnyFlight = InflightRequest | InflightScoreRequest


class InProcessEngine(ClosingResource):
    """Steps while there is something to compute; an idle engine has nothing to leak."""

    task_name: ClassVar[str]
    blamed: ClassVar[str]
    """Attribution of errors of a step."""

    def __init__(
        self,
        *,
        version: int,
        context_tokens: int,
        score_tokens: int,
        vocabulary: int,
        decode: Decode | None,
        images: ImageProcessor | None,
    ) -> None:
        """`score_tokens` are the most of a request that is scored, prompt and all."""
        self._version = version
        self._context_tokens = context_tokens
        self._score_tokens = score_tokens
        self._vocabulary = vocabulary
        self._decode = decode
        self._images = images
        self._flights: dict[str, AnyFlight] = {}
        """Requests that are not answered, each by a key that no other has had."""
        self._keys: dict[str, str] = {}
        """The key of each request by its id, which may come again after its answer."""
        self._loop: asyncio.Task[None] | None = None
        self._open = True
        self._paused = False
        self._preparing: set[str] = set()
        self._broken: EngineError | None = None
        self._requests = 0

    def _new_key(self) -> str:
        return str(self._requests)

    @abstractmethod
    def _validate_request(self, request: GenerateRequest | ScoreRequest) -> PromptImages | None:
        """Check what only this engine asks of a request; return its images, if it reads them."""

    def _must_prepare(self, image: Image) -> bool:
        """Return whether an image has to be cut up before a request that shows it."""
        return True

    @abstractmethod
    def _enqueue(self, key: str, flight: AnyFlight) -> None: ...

    @abstractmethod
    def _release(self, key: str, flight: AnyFlight) -> None:
        """Free what a request occupies."""

    @abstractmethod
    async def _compute(self) -> None:
        """Take one step, and let others run."""

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerateRequest) -> Completion:
        if not await self._prepare(request):
            return Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")
        self._check_usable()
        check_request(
            request,
            context_tokens=self._context_tokens,
            vocabulary=self._vocabulary,
            in_flight=self._keys,
            reads_text=self._decode is not None,
            takes_images=self._images is not None,
        )
        flight = InflightRequest(
            request,
            min(request.max_new_tokens, self._context_tokens - len(request.prompt)),
            asyncio.get_running_loop().create_future(),
            self._requests,
            self._validate_request(request),
        )
        return await self._await_reply(flight)

    async def score(self, request: ScoreRequest) -> Scores:
        if not await self._prepare(request):
            return Scores(logprobs=(), version=self._version)
        self._check_usable()
        check_score(
            request,
            context_tokens=self._score_tokens,
            vocabulary=self._vocabulary,
            in_flight=self._keys,
            takes_images=self._images is not None,
        )
        future = asyncio.get_running_loop().create_future()
        flight = InflightScoreRequest(
            request, future, self._requests, self._validate_request(request)
        )
        return await self._await_reply(flight)

    async def abort(self, request_id: str) -> None:
        self._preparing.discard(request_id)
        if (key := self._keys.get(request_id)) is not None:
            self._end(key, "aborted")

    async def pause(self) -> None:
        self._paused = True
        self._end_all()

    async def resume(self) -> None:
        self._paused = False
        self._wake()

    async def close(self) -> None:
        self._open = False
        self._end_all()
        if self._loop is not None and not self._loop.done():
            # With nothing in flight the loop ends at its next look.
            await asyncio.wait([self._loop])

    async def _await_reply(self, flight: AnyFlight) -> Any:
        key = self._add(flight)
        try:
            return await flight.reply
        finally:
            if key in self._flights:
                self._forget(key)

    def _add(self, flight: AnyFlight) -> str:
        self._requests += 1
        key = self._new_key()
        self._flights[key] = flight
        self._keys[flight.request.id] = key
        self._enqueue(key, flight)
        self._wake()
        return key

    def _forget(self, key: str) -> None:
        flight = self._flights.pop(key)
        if self._keys.get(flight.request.id) == key:
            del self._keys[flight.request.id]
        self._release(key, flight)

    def _wake(self) -> None:
        """See to it that the loop runs, if there is anything to compute."""
        idle = self._loop is None or self._loop.done()
        if idle and self._flights and not self._paused:
            self._loop = asyncio.get_running_loop().create_task(self._run(), name=self.task_name)

    async def _run(self) -> None:
        """Step until nothing is left to compute. Whatever happens, nobody is left waiting."""
        try:
            while self._flights and not self._paused:
                with blame(EngineError, self.blamed):
                    await self._compute()
        except AgentrlError as error:
            self._break(error)
        except asyncio.CancelledError:
            self._end_all()
            raise

    def _end(self, key: str, finish: FinishReason) -> None:
        flight = self._flights[key]
        self._forget(key)
        flight.end(finish)

    def _end_all(self) -> None:
        self._preparing.clear()
        for key in list(self._flights):
            self._end(key, "aborted")

    def _break(self, error: AgentrlError) -> None:
        self._broken = EngineError(f"{error}; the engine is broken, create a new one")
        self._broken.__cause__ = error
        for key, flight in list(self._flights.items()):
            self._forget(key)
            if not flight.reply.done():
                flight.reply.set_exception(EngineError(str(error)))

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if not self._open:
            raise EngineError("the engine is closed; create a new one")

    async def _prepare(self, request: GenerateRequest | ScoreRequest) -> bool:
        """Cut up the images of a request; return False for one that was ended meanwhile."""
        if self._images is None or not request.images:
            return True
        self._preparing.add(request.id)
        try:
            await self._images.prepare([s for s in request.images if self._must_prepare(s.image)])
            return request.id in self._preparing
        finally:
            self._preparing.discard(request.id)
