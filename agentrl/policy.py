"""Step 3 of the flow: the policy engine. Token ids in, sampled token ids out."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentrl.message import ImageSpan

FinishReason = Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The distribution tokens are drawn from. Log-probs are taken under exactly this one."""

    temperature: float = 1.0
    """0 is greedy: the distribution is a point, and its log-prob is 0."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature must be within [0, 100], got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be within (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, got {self.top_k}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn to be sampled."""

    id: str
    """Names the request for `abort`; unique among those in flight."""
    prompt: tuple[int, ...]
    """The whole context as token ids; the engine finds what it already has in its cache."""
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_token_ids: frozenset[int] = frozenset()
    """The stop token is part of the completion: the policy sampled it."""
    stop_strings: tuple[str, ...] = ()
    """Generation ends with the token that completes one; that token is kept."""
    top_logprobs: int = 0
    """Number of alternatives to return per token."""
    entropies: bool = False
    """Whether to return the entropy of the distribution each token was drawn from."""
    seed: int = 0
    """Same request, same weights, same tokens, whatever else is in the batch. The noise of a token
    depends on the seed and on its position in the context, so a continued request goes on as if it
    had never been interrupted."""
    images: tuple[ImageSpan, ...] = ()
    """Images of the prompt, in its order. Every token outside of these is text, whatever its id: a
    policy that samples the id of an image's tokens has said a word, and shown nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens that the policy sampled, stamped by the engine at the moment of sampling."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token, in nats, under the exact sampling distribution."""
    versions: tuple[int, ...]
    """Of the weights that sampled each token."""
    finish: FinishReason
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, `(token id, log-prob)` of the most likely ones, most likely first, under the
    sampling distribution; empty unless asked for."""
    entropies: tuple[float, ...] = ()
    """Per token, of the sampling distribution it was drawn from, in nats; empty unless asked for,
    and from an engine that cannot tell."""
    prompt_cached_tokens: int = 0
    """Number of prompt tokens the engine did not have to compute again."""

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"a completion has {len(self.token_ids)} tokens, {len(self.logprobs)} log-probs, "
                f"{len(self.versions)} versions; an engine returns one of each per sampled token"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Tokens that somebody else wrote, for the policy to say how likely they are."""

    id: str
    """Names the request for `abort`; unique among those in flight."""
    prompt: tuple[int, ...]
    """The context before the tokens; at least one."""
    token_ids: tuple[int, ...]
    """The tokens; at least one."""
    sampling: Sampling = field(default_factory=Sampling)
    """The distribution they are judged under."""
    top_logprobs: int = 0
    """Number of alternatives to return per token."""
    entropies: bool = False
    distribution: bool = False
    """Whether to return the whole distribution at the last token."""
    images: tuple[ImageSpan, ...] = ()
    """Images of the prompt, as in `GenerateRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of tokens under one version of the policy."""

    logprobs: tuple[float, ...]
    """Of each token, in nats, under the exact sampling distribution; -inf for one that cannot be
    drawn. Empty when the request was aborted."""
    version: int
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, as in `Completion`."""
    entropies: tuple[float, ...] = ()
    """Per token, in nats."""
    distribution: tuple[float, ...] = ()
    """Log-probs of the whole vocabulary, by token id, at the place of the last token."""


@runtime_checkable
class PolicyEngine(Protocol):
    """Samples turns from the policy. Many requests are in flight at once."""

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn. Cancelling the caller frees the request and returns nothing.

        Raises `ValueError` for a prompt that leaves no room in the context.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request now: its `generate` returns what it has, `finish="aborted"`."""
        ...

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        ...

    async def resume(self) -> None:
        """Take requests again."""
        ...

    async def load(self, weights: Any, version: int) -> None:
        """Take new weights (a state dict, or what the engine documents) and forget cached keys.

        Requests in flight go on, and their next tokens carry the new version.
        """
        ...

    async def close(self) -> None:
        """End every request as aborted and release everything. Idempotent."""
        ...


@runtime_checkable
class ScoringEngine(PolicyEngine, Protocol):
    """A policy engine that also scores tokens in one forward pass. Drafts need one."""

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens with the weights now loaded, all under one version.

        `abort`, `pause` and `close` end it with empty log-probs. Raises `ValueError` for tokens
        that do not fit the context or the vocabulary.
        """
        ...
