"""Several servers as one engine."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from agentrl.engine.endpoint.engine import CompletionsEngine
from agentrl.engine.several import Several
from agentrl.sync.adapters import Adapted, adapted_in
from agentrl.sync.proof import Provable


class Servers(Several[CompletionsEngine]):
    """A `Router` over servers: each is given every version, and proves it."""

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
