"""A request in flight: what it asked for and what it has so far."""

import asyncio
from dataclasses import dataclass, field

from agentrl.engine.image_encoder import PromptImages
from agentrl.engine.noise import stream
from agentrl.engine.sampling import SampledToken
from agentrl.engine.stopping import PartialTurn
from agentrl.policy import Completion, FinishReason


@dataclass(slots=True, eq=False)
class InflightRequest(PartialTurn):
    """Owned by the engine; the caller of `generate` waits on `reply`.

    Its context names images by content. Requests are served by `order`.
    """

    reply: asyncio.Future[Completion]
    order: int
    sight: PromptImages | None = None
    noise: int = field(init=False)
    draft_rate: float = 0.0
    """Share of its latest guesses that were right, a moving average."""

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

    def take(self, pick: SampledToken, *, version: int) -> None:
        """Append one sampled token."""
        self.context.append(pick.token)
        self.logprobs.append(pick.logprob)
        self.versions.append(version)
        if self.request.top_logprobs:
            self.top_logprobs.append(pick.top)
        if self.request.entropies:
            self.entropies.append(pick.entropy)

    def begin_again(self) -> None:
        """Go on under new weights: what is sampled stays."""

    def end(self, finish: FinishReason) -> None:
        """Answer the caller with what there is."""
        if not self.reply.done():
            self.reply.set_result(self.completion(finish))
