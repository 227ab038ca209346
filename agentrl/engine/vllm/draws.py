"""Drawing in vLLM's place: agentrl's sampling and noise, on the logits that vLLM computes.

vLLM asks this after every forward pass for logits to choose from, and gets a point: the token that
was drawn here. So log-probs are of the exact distribution, entropies and alternatives come with
them, and a request's noise depends on its seed and the position alone, as in every other engine.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    LogitsProcessor,
    MoveDirectionality,
)

from agentrl.engine.flight import Flight
from agentrl.engine.noise import uniforms
from agentrl.engine.sampling import Pick, sample
from agentrl.engine.vllm.scores import KEY

FLIGHTS: dict[str, Flight] = {}
"""Every flight of this process by the name its request carries. vLLM makes the processor itself,
so there is no other way in."""
PICKS: dict[str, Pick] = {}
"""What was drawn last for each. vLLM may throw a draw away, so it counts when vLLM reports it."""


class Draws(LogitsProcessor):  # pyright: ignore[reportUntypedBaseClass]
    """Follows vLLM's batch, and draws for the flights in it."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory
        self._rows: dict[int, str] = {}

    def is_argmax_invariant(self) -> bool:
        """Say that this decides which token is the most likely."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow who has which row."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, _ in batch_update.added:
            self._rows.pop(row, None)
            if name := (params.extra_args or {}).get(KEY):
                self._rows[row] = name
        for one, other, direction in batch_update.moved:
            moved, displaced = self._rows.pop(one, None), self._rows.pop(other, None)
            if moved is not None:
                self._rows[other] = moved
            if displaced is not None and direction == MoveDirectionality.SWAP:
                self._rows[one] = displaced

    def apply(self, logits: Tensor) -> Tensor:
        """Draw one token per row, and make it the only one there is to choose."""
        found = [(row, name, FLIGHTS[name]) for row, name in self._known(logits.shape[0])]
        if not found:
            return logits
        rows = [row for row, _, _ in found]
        flights = [flight for _, _, flight in found]
        picks = sample(
            logits[rows].float(),
            [flight.request.sampling for flight in flights],
            uniforms([f.noise for f in flights], [len(f.context) for f in flights]),
            [flight.request.top_logprobs for flight in flights],
            entropies=any(flight.request.entropies for flight in flights),
        )
        PICKS.update((name, pick) for (_, name, _), pick in zip(found, picks, strict=True))
        chosen = torch.tensor([rows, [pick.token for pick in picks]], device=logits.device)
        logits[chosen[0]] = -torch.inf
        logits[chosen[0], chosen[1]] = 0.0
        return logits

    def _known(self, rows: int) -> list[tuple[int, str]]:
        known: Mapping[int, str] = self._rows
        return sorted((r, n) for r, n in known.items() if r < rows and n in FLIGHTS)
