"""The keys of a server that somebody else started, and what they have to agree with."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentrl.config.section import ConfigSection

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


class EndpointSection(ConfigSection):
    """Servers that somebody else started (docs/engines.md), each with the policy as its base."""

    urls: list[str] = Field(min_length=1)
    """Up to and with the version, such as `http://localhost:8000/v1`; requests are spread over
    several."""
    model: str = Field(min_length=1)
    """Name of the base model on the servers."""
    adapters: Path | None = None
    """Folder for the adapters of each version, which the servers read under the same path; null is
    `adapters` in the run's folder."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; none is sent where it is not set."""
    silence_s: PositiveFloat = 300.0
    """Longest silence while an answer is to come; then it is asked for again."""
    retries: NonNegativeInt = 8
    """Tries in a row after answers 408, 409, 425, 429 and 5xx and lost connections, waiting up to a
    minute; then the request counts as lost."""


def endpoint_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield what a server of somebody else's and the rest of a config cannot do together."""
    engine = config.engine
    if engine.kind != "endpoint":
        if engine.endpoint is not None:
            yield (
                f"engine.endpoint is set and engine.kind is {engine.kind}, which asks no server; "
                "set engine.kind: endpoint, or leave it out"
            )
        return
    if engine.endpoint is None:
        yield (
            "engine.kind is endpoint and engine.endpoint does not say which; set "
            "engine.endpoint.urls and engine.endpoint.model"
        )
    if config.learn.lora is None:
        yield (
            "engine.kind is endpoint and learn.lora is not set: an endpoint takes adapters, and no "
            "other weights; set learn.lora"
        )
    for key in ("processes", "addresses", "python", "broadcast"):
        if value := getattr(engine, key):
            yield (
                f"engine.{key} is {value} and engine.kind is endpoint, whose servers somebody else "
                "starts; leave it out"
            )
    if config.policy.make is not None and config.policy.make.vision is not None:
        yield (
            "policy.make.vision is set and engine.kind is endpoint, which is shown no images; use "
            "engine.kind local or vllm"
        )
