"""Base of the engines in this process: requests in flight, and a task that computes them."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.errors import AgentrlError, EngineError, blame
from agentrl.message import ImageSpan
from agentrl.policy import FinishReason, GenerateRequest, ScoreRequest
from agentrl.runtime.closing import ClosingResource

AnyFlight = InflightRequest | InflightScoreRequest


class ImagePreparer(Protocol):
    """Cuts up images before a request is taken."""

    async def prepare(self, spans: Sequence[ImageSpan]) -> None: ...


class InProcessEngine(ClosingResource):
    """Steps while there is something to compute; an idle engine has nothing to leak."""

    task_name: ClassVar[str]
    blamed: ClassVar[str]
    """What an error of a step is attributed to."""

    def __init__(self, *, version: int, images: ImagePreparer | None) -> None:
        self._version = version
        self._images = images
        self._flights: dict[str, AnyFlight] = {}
        """Requests that are not answered, by a key of the engine's choice."""
        self._loop: asyncio.Task[None] | None = None
        self._open = True
        self._paused = False
        self._preparing: set[str] = set()
        """Requests whose images are being cut up."""
        self._broken: EngineError | None = None
        self._requests = 0

    @abstractmethod
    async def _compute(self) -> None:
        """Take one step, and let others run."""

    @abstractmethod
    def _forget(self, key: str) -> None:
        """Free what a request occupies."""

    @property
    def version(self) -> int:
        return self._version

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

    async def _await_reply(self, key: str, flight: AnyFlight) -> Any:
        try:
            return await flight.reply
        finally:
            if self._flights.get(key) is flight:
                self._forget(key)

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
            await self._images.prepare(request.images)
            return request.id in self._preparing
        finally:
            self._preparing.discard(request.id)
