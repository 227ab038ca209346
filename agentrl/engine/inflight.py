"""A request in flight: what it asked for and what it has so far."""

import asyncio
from dataclasses import dataclass, field

from agentrl.engine.image_encoder import PromptImages
from agentrl.engine.noise import stream
from agentrl.engine.sampling import SampledToken
from agentrl.engine.stopping import Decode, ends_with_stop
from agentrl.policy import Completion, FinishReason, GenerateRequest

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class InflightRequest:
    """Owned by the engine; the caller of `generate` waits on `reply`."""

    request: GenerateRequest
    reply: asyncio.Future[Completion]
    order: int
    max_tokens: int
    """Tokens that budget and context leave room for."""
    sight: PromptImages | None = None
    context: list[int] = field(init=False)
    """The prompt, images by name, and what has been sampled."""
    noise: int = field(init=False)
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    top_logprobs: list[TopLogprobs] = field(default_factory=list[TopLogprobs])
    entropies: list[float] = field(default_factory=list[float])
    cached_tokens: int | None = None
    """Cached tokens of the prompt when it was first placed; None before."""

    def __post_init__(self) -> None:
        self.context = list(self.sight.prompt if self.sight else self.request.prompt)
        self.noise = stream(self.request.seed)

    @property
    def reusable(self) -> list[int]:
        """Return the part of the context whose keys may come from a cache, and one more token."""
        return self.context

    def count_logits(self, start: int, count: int) -> int:
        """Return after how many of the last of `count` tokens from `start` on it needs logits."""
        return int(start + count == len(self.context))

    @property
    def new_tokens(self) -> list[int]:
        """Sampled token ids."""
        return self.context[len(self.request.prompt) :]

    def take(self, pick: SampledToken, *, version: int) -> None:
        """Append one sampled token."""
        self.context.append(pick.token)
        self.logprobs.append(pick.logprob)
        self.versions.append(version)
        if self.request.top_logprobs:
            self.top_logprobs.append(pick.top)
        if self.request.entropies:
            self.entropies.append(pick.entropy)

    def finish(self, decode: Decode | None) -> FinishReason | None:
        """Return the finish reason at its last token, or None; `decode` reads stop strings."""
        if self.context[-1] in self.request.stop_token_ids:
            return "stop"
        stops = self.request.stop_strings
        if stops and decode is not None and ends_with_stop(self.new_tokens, stops, decode):
            return "stop"
        return "length" if len(self.logprobs) >= self.max_tokens else None

    def begin_again(self) -> None:
        """Go on under new weights: what is sampled stays."""

    def end(self, finish: FinishReason) -> None:
        """Answer the caller with what there is."""
        if not self.reply.done():
            self.reply.set_result(self.completion(finish))

    def completion(self, finish: FinishReason) -> Completion:
        """Return the completion so far, as the answer to the request."""
        return Completion(
            token_ids=tuple(self.new_tokens),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish=finish,
            top_logprobs=tuple(self.top_logprobs),
            entropies=tuple(self.entropies),
            prompt_cached_tokens=self.cached_tokens or 0,
        )
