"""Results of a step of vLLM."""

from dataclasses import dataclass

from agentrl.engine.sampling import SampledToken


@dataclass(frozen=True, slots=True)
class SampledStep:
    """One token of one request."""

    request_id: str
    pick: SampledToken
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """A request whose every token is scored."""

    request_id: str
