"""A request that scores tokens: logits to the log-probs of what somebody else wrote."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from agentrl.engine.image_encoder import PromptImages
from agentrl.engine.sampling import distribution, entropy, most_likely
from agentrl.errors import EngineError
from agentrl.policy import ScoreRequest, Scores


@dataclass(slots=True, eq=False)
class InflightScoreRequest:
    """Owned by the engine; the caller of `score` waits on `reply`."""

    request: ScoreRequest
    reply: asyncio.Future[Scores]
    order: int
    sight: PromptImages | None = None
    context: list[int] = field(init=False)
    """The prompt and all tokens but the last: what says how likely each of them is."""
    version: int = -1
    logprobs: list[float] = field(default_factory=list[float])
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(
        default_factory=list[tuple[tuple[int, float], ...]]
    )
    entropies: list[float] = field(default_factory=list[float])
    distribution: tuple[float, ...] = ()
    cached_tokens: int | None = None

    def __post_init__(self) -> None:
        prompt = self.sight.prompt if self.sight else self.request.prompt
        self.context = [*prompt, *self.request.token_ids[:-1]]

    @property
    def reusable(self) -> list[int]:
        """Return the prompt: what comes after it must be computed, for its logits."""
        return self.context[: len(self.request.prompt)]

    @property
    def is_done(self) -> bool:
        """Return whether every token has its score."""
        return len(self.logprobs) == len(self.request.token_ids)

    def count_logits(self, start: int, count: int) -> int:
        """Return after how many of the last of `count` tokens from `start` on it needs logits."""
        return max(0, start + count - max(start, len(self.request.prompt) - 1))

    def take(self, logits: Tensor, *, version: int) -> None:
        """Score the next tokens by logits of shape (tokens, vocabulary).

        Raises `EngineError` for logits that are not finite.
        """
        request, at = self.request, len(self.logprobs)
        logprobs = distribution(logits, [request.sampling] * len(logits))
        if logprobs.isnan().any():
            raise EngineError(
                "the model's logits define no distribution; the weights loaded last are not finite "
                "or have diverged"
            )
        tokens = torch.tensor(request.token_ids[at : at + len(logits)], device=logits.device)
        self.version = version
        self.logprobs += logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        if request.top_logprobs:
            self.top_logprobs += most_likely(logprobs, [request.top_logprobs] * len(logits))
        if request.entropies:
            self.entropies += entropy(logprobs).tolist()
        if request.distribution and self.is_done:
            self.distribution = tuple(logprobs[-1].tolist())

    def begin_again(self) -> None:
        """Forget every score: all are of one version."""
        self.logprobs.clear()
        self.top_logprobs.clear()
        self.entropies.clear()

    def end(self, finish: Literal["stop", "length", "aborted"]) -> None:
        """Answer the caller: with every score, or with none."""
        if self.reply.done():
            return
        if finish == "aborted":
            self.reply.set_result(Scores(logprobs=(), version=self.version))
            return
        self.reply.set_result(
            Scores(
                logprobs=tuple(self.logprobs),
                version=self.version,
                top_logprobs=tuple(self.top_logprobs),
                entropies=tuple(self.entropies),
                distribution=self.distribution,
            )
        )
