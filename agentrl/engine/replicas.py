"""Engines that are begun, asked and closed together: a router that owns what it routes to."""

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from agentrl.engine.router import EngineRouter
from agentrl.errors import first_error
from agentrl.policy import ScoreRequest, Scores, ScoringEngine
from agentrl.runtime.closing import ClosingResource


class OpenableEngine(ScoringEngine, Protocol):
    """An engine that has to be begun before it is asked."""

    async def __aenter__(self) -> Any: ...


B = TypeVar("B", bound=OpenableEngine)


class ReplicatedEngine(EngineRouter, ClosingResource, Generic[B]):
    """Router over engines of its own: they begin at once, and close when one of them cannot."""

    def __init__(self, engines: Sequence[B]) -> None:
        super().__init__(engines)
        self._several = tuple(engines)

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens on the engine that is best for the request, as `generate` samples."""
        return await self._route(
            request,
            lambda index: self._several[index].score(request),
            lambda scores: len(scores.logprobs),
        )

    async def __aenter__(self) -> Self:
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    for engine in self._several:
                        group.create_task(engine.__aenter__())
        except BaseException:
            await self.close()
            raise
        return self
