"""A turn while its tokens come: what there is of it, and where it stops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrl.policy import Completion, FinishReason, GenerateRequest

TopLogprobs = tuple[tuple[int, float], ...]
Decode = Callable[[Sequence[int]], str]
"""Token ids to text, as a tokenizer's `decode` without clean-up."""


def ends_with_stop(tokens: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Return whether the last token completed a stop string.

    Called after every token, so only a tail long enough to hold the longest string is decoded. A
    tail may begin inside a character; twice the length keeps what that garbles out of the way.
    """
    if not stops:
        return False
    enough = 2 * max(map(len, stops)) + 4
    window = 8
    while True:
        text = decode(tokens[-window:])
        if len(text) >= enough or window >= len(tokens):
            return any(stop in text for stop in stops)
        window *= 2


@dataclass(slots=True, eq=False)
class PartialTurn:
    """Tokens sampled so far for one request."""

    request: GenerateRequest
    max_tokens: int
    """Tokens that budget and context leave room for."""
    context: list[int] = field(init=False)
    """The prompt and what has been sampled."""
    logprobs: list[float] = field(init=False, default_factory=list[float])
    versions: list[int] = field(init=False, default_factory=list[int])
    top_logprobs: list[TopLogprobs] = field(init=False, default_factory=list[TopLogprobs])
    entropies: list[float] = field(init=False, default_factory=list[float])
    cached_tokens: int | None = field(init=False, default=None)
    """Cached tokens of the prompt at first; None before, and where nobody says."""

    def __post_init__(self) -> None:
        self.context = list(self.request.prompt)

    @property
    def new_tokens(self) -> list[int]:
        """Sampled token ids."""
        return self.context[len(self.request.prompt) :]

    def find_finish(self, decode: Decode | None) -> FinishReason | None:
        """Return the finish reason at its last token, or None; `decode` reads stop strings."""
        if self.context[-1] in self.request.stop_token_ids:
            return "stop"
        stops = self.request.stop_strings
        if stops and decode is not None:
            turn = self.context[len(self.request.prompt) - self.request.begun_tokens :]
            if ends_with_stop(turn, stops, decode):
                return "stop"
        return "length" if len(self.logprobs) >= self.max_tokens else None

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
