"""Several servers as one engine."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from agentrl.engine.endpoint.engine import CompletionsEngine
from agentrl.engine.replicas import ReplicatedEngine
from agentrl.weight_sync.adapters import AdapterWeights, find_adapters
from agentrl.weight_sync.check import CheckedWeights


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
