"""Several servers as one engine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from torch import Tensor

from agentrl.closing import Closing
from agentrl.engine.endpoint.engine import CompletionsEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.policy import ScoreRequest, Scores
from agentrl.rollout.gate.routing import Router
from agentrl.sync.adapters import Adapted, adapted_in
from agentrl.sync.proof import Provable


class Servers(Router, Closing):
    """A `Router` over servers: each is given every version, and proves it."""

    def __init__(self, engines: Sequence[CompletionsEngine]) -> None:
        """Take at least one engine, which this owns."""
        super().__init__(engines)
        self._servers = tuple(engines)

    async def prepare(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights with a copy of their adapters: the trainer goes on with its own."""
        adapted = adapted_in(weights)
        if adapted is None:
            return weights
        copies = {
            name: replace(adapter, a=adapter.a.clone(), b=adapter.b.clone())
            for name, adapter in adapted.adapters.items()
        }
        copy = Adapted(adapted.base, copies)
        return Provable(copy, weights.proof) if isinstance(weights, Provable) else copy

    async def score(self, request: ScoreRequest) -> Scores:
        """Return what the weights say of tokens, asked where their trajectory is at home."""
        return await self._servers[self.best(request.id, len(request.prompt))].score(request)

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self._servers:
                    group.create_task(engine.__aenter__())
        except* (EngineError, ConfigError) as errors:
            await self.close()
            raise errors.exceptions[0] from None
        return self
