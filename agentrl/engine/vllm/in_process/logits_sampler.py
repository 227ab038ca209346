"""Samples in vLLM's place: agentrl's sampling and noise, on the logits that vLLM computes.

vLLM asks this after every forward pass for logits to choose from, and gets a point: the token that
was drawn here. So log-probs are of the exact distribution, entropies and alternatives come with
them, and a request's noise depends on its seed and the position alone, as in every other engine.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    LogitsProcessor,
    MoveDirectionality,
)

from agentrl.engine.in_process import AnyFlight
from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.noise import uniforms
from agentrl.engine.sampling import SampledToken, sample
from agentrl.engine.vllm.in_process import scores
from agentrl.engine.vllm.in_process.steps import SampledStep, ScoredRequest
from agentrl.errors import ConfigError, EngineError

FLIGHTS: dict[str, InflightRequest] = {}
"""Every flight of this process by the name its request carries. vLLM makes the processor itself,
so there is no other way in."""
PICKS: dict[str, SampledToken] = {}
"""Latest draw of each. vLLM may throw a draw away, so it counts when vLLM reports it."""


class SeededLogitsProcessor(LogitsProcessor):  # pyright: ignore[reportUntypedBaseClass]
    """Follows vLLM's batch, and draws for the flights in it."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, str] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, _ in batch_update.added:
            self._rows.pop(row, None)
            if name := (params.extra_args or {}).get(scores.KEY):
                self._rows[row] = name
        for one, other, direction in batch_update.moved:
            moved, displaced = self._rows.pop(one, None), self._rows.pop(other, None)
            if moved is not None:
                self._rows[other] = moved
            if displaced is not None and direction == MoveDirectionality.SWAP:
                self._rows[one] = displaced

    def apply(self, logits: Tensor) -> Tensor:
        """Draw one token per row, and make it the only one there is to choose."""
        entries = [(row, name, FLIGHTS[name]) for row, name in self._find_rows(logits.shape[0])]
        if not entries:
            return logits
        rows = [row for row, _, _ in entries]
        flights = [flight for _, _, flight in entries]
        picks = sample(
            logits[rows].float(),
            [flight.request.sampling for flight in flights],
            uniforms([f.noise for f in flights], [len(f.context) for f in flights]),
            [flight.request.top_logprobs for flight in flights],
            entropies=any(flight.request.entropies for flight in flights),
        )
        PICKS.update((name, pick) for (_, name, _), pick in zip(entries, picks, strict=True))
        indices = torch.tensor([rows, [pick.token for pick in picks]], device=logits.device)
        logits[indices[0]] = -torch.inf
        logits[indices[0], indices[1]] = 0.0
        return logits

    def _find_rows(self, rows: int) -> list[tuple[int, str]]:
        row_names: Mapping[int, str] = self._rows
        return sorted((r, n) for r, n in row_names.items() if r < rows and n in FLIGHTS)


class LogitsSampler:
    """Draws and scores tokens here, from the logits that vLLM computes."""

    version = 0
    """Version of the weights of the step under way."""

    def engine_arguments(self) -> dict[str, Any]:
        """Return the arguments of `EngineArgs`."""
        return {"logits_processors": [SeededLogitsProcessor]}

    def attach(self, engine: Any) -> None:
        """Have the workers of a started `LLMEngine` score what they compute.

        Raises `ConfigError` for one whose model runner cannot be asked.
        """
        if not all(engine.collective_rpc(scores.watch, args=(lambda: self.version,))):
            raise ConfigError(
                "engine.vllm.sampler is agentrl, but this vLLM uses a model runner that cannot "
                "report scores; set engine.vllm.sampler: vllm"
            )

    def request_arguments(self, name: str, flight: AnyFlight) -> dict[str, Any]:
        """Return arguments of `SamplingParams` that take the one token the processor leaves."""
        is_scored = isinstance(flight, InflightScoreRequest)
        if is_scored:
            scores.FLIGHTS[name] = flight
        else:
            FLIGHTS[name] = flight
        return {
            "temperature": 0.0,
            "max_tokens": 1 if is_scored else flight.max_tokens,
            # What comes out of the cache has no logits.
            "skip_reading_prefix_cache": is_scored,
            "extra_args": {scores.KEY: name},
        }

    def read(self, flight: AnyFlight, output: Any) -> Iterator[SampledStep | ScoredRequest]:
        """Yield what was drawn or scored; `EngineError` where vLLM did otherwise."""
        name = output.request_id
        if isinstance(flight, InflightScoreRequest):
            if not flight.is_done:
                raise EngineError(
                    f"request {flight.request.id!r}: vLLM finished it with only "
                    f"{len(flight.logprobs)} of {len(flight.request.token_ids)} tokens scored; its "
                    "model runner did not expose all logits"
                )
            yield ScoredRequest(name)
            return
        if not output.outputs:
            return
        pick = PICKS.pop(name, None)
        sampled = output.outputs[0].token_ids
        if pick is None or not sampled or sampled[-1] != pick.token:
            raise EngineError(
                f"request {flight.request.id!r}: vLLM reports token {list(sampled)[-1:]} next, but "
                f"{pick} was sampled; its sampler ignored the processed logits"
            )
        yield SampledStep(name, pick, output.num_cached_tokens or 0)

    def drop(self, name: str) -> None:
        """Forget a request."""
        scores.FLIGHTS.pop(name, None)
        FLIGHTS.pop(name, None)
        PICKS.pop(name, None)
