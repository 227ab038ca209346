"""Settings of a server that somebody else started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.engine.endpoint.dialects import Api
from agentrl.policy import Sampling
from agentrl.runtime.http_endpoint import KEY, HttpEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """A server, the model it serves, and what it will be asked for."""

    url: str
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    """The base, by the name it has there."""
    adapters: Path
    """Folder in which adapters are written, and from which the server reads them."""
    vocabulary: int
    """Vocabulary size of the model: no other token ids are believed."""
    context_tokens: int
    samplings: tuple[Sampling, ...] = (Sampling(),)
    top_logprobs: int = 1
    """Most alternatives that will be asked for."""
    key_variable: str = KEY
    silence_s: float = 300.0
    """Longest silence while an answer is to come."""
    retries: int = 8
    start_s: float = 600.0
    """Deadline for the server to be there."""
    api: Api = "completions"
    """Form of requests and answers."""
    update: Literal["recompute", "keep"] = "recompute"
    """Requests in flight when whole weights arrive: asked for again, with nothing in a cache, or
    kept with what they have cached. `keep` needs the api `generate` or `sglang`."""
    sleep_level: int = 0
    """What a sleeping engine gives up: 1 weights, to the host, and keys; 2 both for good; 0 never
    sleeps."""

    @property
    def endpoint(self) -> HttpEndpoint:
        """Endpoint of the server."""
        return HttpEndpoint(
            url=self.url,
            model=self.model,
            key_variable=self.key_variable,
            timeout_s=self.silence_s,
            retries=self.retries,
        )


def is_neutral(sampling: Sampling) -> bool:
    """Return whether it draws from the softmax of the logits, as they are."""
    return sampling.temperature == 1 and sampling.top_p == 1 and sampling.top_k == 0


def is_greedy(sampling: Sampling) -> bool:
    """Return whether it draws from a point: then a log-prob is 0, whatever a server says."""
    return sampling.temperature == 0
