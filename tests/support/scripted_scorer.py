"""A scripted engine that also scores."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.engine.scripted import Reply, ScriptedEngine
from agentrl.errors import EngineError
from agentrl.policy import ScoreRequest, Scores

Distribution = Callable[[tuple[int, ...]], Sequence[float]]
"""Log-probs of the whole vocabulary after a context; at temperature 0 too."""


class ScriptedScorer(ScriptedEngine):
    """A scripted engine that also scores; what it says need not agree with how it scores."""

    def __init__(
        self,
        replies: Reply | Mapping[tuple[int, ...], Sequence[int]],
        distribution: Distribution,
        **changes: Any,
    ) -> None:
        """Take how tokens are scored, and what `ScriptedEngine` takes."""
        super().__init__(replies, **changes)
        self.distribution = distribution
        self.scored: list[ScoreRequest] = []
        """Every request for scores in the order it came."""

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens by `distribution`; with empty log-probs if it is paused meanwhile."""
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        self.scored.append(request)
        await asyncio.sleep(self._token_s)
        if not self._taking.is_set():
            return Scores(logprobs=(), version=self._version)
        tokens = request.token_ids
        rows = [self.distribution(request.prompt + tokens[:at]) for at in range(len(tokens))]
        ranked = [sorted(enumerate(row), key=lambda pair: -pair[1]) for row in rows]
        top = tuple(tuple(pairs[: request.top_logprobs]) for pairs in ranked)
        return Scores(
            logprobs=tuple(row[token] for row, token in zip(rows, tokens, strict=True)),
            version=self._version,
            top_logprobs=top if request.top_logprobs else (),
            entropies=tuple(map(_entropy, rows)) if request.entropies else (),
            distribution=tuple(rows[-1]) if request.distribution else (),
        )


def _entropy(logprobs: Sequence[float]) -> float:
    return -sum(math.exp(x) * x for x in logprobs if x > -math.inf)
