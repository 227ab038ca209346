"""Step 3 of the flow: the policy engine. Token ids in, sampled token ids out."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentrl.message import ImageSpan

FinishReason = Literal["stop", "length", "aborted"]
"""Reason for the end of a completion: a stop token or string, a limit on tokens, or `abort`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The distribution tokens are drawn from. Log-probs are taken under exactly this one.

    Raises:
        ValueError: A value is out of its range.
    """

    temperature: float = 1.0
    """Divisor of the logits, within [0, 100]. 0 is greedy: the distribution is a point, and its
    log-prob is 0."""
    top_p: float = 1.0
    """Mass of the most likely tokens that are kept, within (0, 1]; 1 keeps all."""
    top_k: int = 0
    """Number of the most likely tokens that are kept; 0 keeps the whole vocabulary."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature must be within [0, 100], got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be within (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 disables it), got {self.top_k}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn to be sampled."""

    id: str
    """Names the request for `abort`; unique among those in flight."""
    prompt: tuple[int, ...]
    """The whole context as token ids; the engine finds what it already has in its cache."""
    max_new_tokens: int
    """Largest number of tokens to sample, at least 1."""
    sampling: Sampling = field(default_factory=Sampling)
    """The distribution to draw from."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the turn. The stop token is part of the completion: the policy sampled it."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end the turn with the token that completes one; that token is kept."""
    begun_tokens: int = 0
    """Number of last tokens of the prompt that were sampled in this turn, before it was aborted: a
    stop string may begin in them."""
    top_logprobs: int = 0
    """Number of alternatives to return per token."""
    entropies: bool = False
    """Whether to return the entropy of the distribution each token was drawn from."""
    seed: int = 0
    """Seed of the sampling noise. Same request, same weights, same tokens, whatever else is in the
    batch. The noise of a token depends on the seed and on its position in the context, so a
    continued request goes on as if it had never been interrupted."""
    images: tuple[ImageSpan, ...] = ()
    """Images of the prompt, in its order. Every token outside of these is text, whatever its id: a
    policy that samples the id of an image's tokens has said a word, and shown nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens that the policy sampled, stamped by the engine at the moment of sampling.

    All per-token tuples have one length, but for those that are empty.

    Raises:
        ValueError: There is not one log-prob and one version per token.
    """

    token_ids: tuple[int, ...]
    """The sampled tokens; none of the prompt's."""
    logprobs: tuple[float, ...]
    """Log-prob of each token, in nats, under the exact sampling distribution."""
    versions: tuple[int, ...]
    """Version of the weights that sampled each token."""
    finish: FinishReason
    """Reason for the end."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, `(token id, log-prob)` of the most likely ones, most likely first, under the
    sampling distribution; empty unless asked for."""
    entropies: tuple[float, ...] = ()
    """Entropy of the distribution each token was drawn from, in nats; empty unless asked for, and
    from an engine that cannot tell."""
    prompt_cached_tokens: int = 0
    """Number of prompt tokens the engine did not have to compute again."""

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"a completion has {len(self.token_ids)} tokens, {len(self.logprobs)} log-probs, "
                f"{len(self.versions)} versions; an engine must return one of each per sampled "
                "token"
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
    """Whether to return the entropy of the distribution at each token."""
    distribution: bool = False
    """Whether to return the whole distribution at the last token."""
    images: tuple[ImageSpan, ...] = ()
    """Images of the prompt, as in `GenerateRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of tokens under one version of the policy."""

    logprobs: tuple[float, ...]
    """Log-prob of each token, in nats, under the exact sampling distribution; -inf for one that
    cannot be drawn. Empty when the request was aborted."""
    version: int
    """Version of the weights that scored all of them."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, as in `Completion`."""
    entropies: tuple[float, ...] = ()
    """Entropy at each token, in nats; empty unless asked for."""
    distribution: tuple[float, ...] = ()
    """Log-probs of the whole vocabulary, by token id, in nats, at the place of the last token;
    empty unless asked for."""


@runtime_checkable
class PolicyEngine(Protocol):
    """Samples turns from the policy. Many requests are in flight at once."""

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn. Cancelling the caller frees the request and returns nothing.

        Args:
            request: The turn to sample.

        Returns:
            The sampled tokens; those there are, where the request was aborted.

        Raises:
            ValueError: The request cannot be served: its prompt leaves no room in the context, or
                its id is in flight already.
            EngineError: The engine is closed, or broke.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request now: its `generate` returns what it has, `finish="aborted"`.

        Args:
            request_id: Id of the request; one that is not in flight is ignored.
        """
        ...

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        ...

    async def resume(self) -> None:
        """Take requests again."""
        ...

    async def load(self, weights: Any, version: int) -> None:
        """Take new weights and forget cached keys.

        Requests in flight go on, and their next tokens carry the new version.

        Args:
            weights: A state dict, or what the engine documents.
            version: Version of these weights, greater than the one before.
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

        `abort`, `pause` and `close` end it with empty log-probs.

        Args:
            request: The tokens, and the context before them.

        Returns:
            One log-prob per token of the request.

        Raises:
            ValueError: The tokens do not fit the context or the vocabulary.
            EngineError: The engine is closed, or broke.
        """
        ...
