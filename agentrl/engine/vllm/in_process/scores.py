"""Scoring in vLLM: the logits of every token that was asked about, in the pass that computes them.

vLLM's own log-probs of a prompt are of the plain distribution, and never the whole of it. So its
worker, which after each forward pass looks whether a request wants them, asks this instead, and
gets no more back than that there is nothing to return.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from agentrl.engine.inflight_scores import InflightScoreRequest

KEY = "agentrl"
"""The extra argument of a request that says which flight it is."""
FLIGHTS: dict[str, InflightScoreRequest] = {}
"""Every flight of this process that scores, by the name its request carries."""
ROWS = 256
"""Logits of so many tokens are held at once: a vocabulary of 150,000 makes 150 MB of them."""
_HOOK = "_get_prompt_logprobs_dict"


def watch(worker: Any, version: Callable[[], int]) -> bool:
    """Let a worker score for `FLIGHTS`; False where its vLLM is built otherwise."""
    runner: Any = worker.model_runner
    if not hasattr(runner, _HOOK) or not hasattr(runner, "query_start_loc"):
        return False

    def look(hidden: torch.Tensor, scheduled: Mapping[str, int]) -> dict[str, None]:
        if FLIGHTS:
            for id, count in scheduled.items():
                _score(runner, hidden, id, count, version())
        return {}

    setattr(runner, _HOOK, look)
    return True


def _score(runner: Any, hidden: torch.Tensor, id: str, count: int, version: int) -> None:
    """Score what the last pass computed for one request: `count` rows of `hidden` (tokens, width).

    What was scored before vLLM took the request's memory away is not scored again.
    """
    request: Any = runner.requests[id]
    params: Any = request.sampling_params
    flight = FLIGHTS.get((params.extra_args or {}).get(KEY, "")) if params is not None else None
    if flight is None or flight.is_done:
        return
    start: int = request.num_computed_tokens
    at: int = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[id]])
    first = len(flight.request.prompt) - 1 + len(flight.logprobs)
    stop = min(start + count, len(flight.context))
    for row in range(first, stop, ROWS):
        piece = hidden[at + row - start : at + min(row + ROWS, stop) - start]
        flight.take(runner.model.compute_logits(piece).float(), version=version)
