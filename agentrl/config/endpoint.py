"""The keys of a server that somebody else started."""

from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentrl.config.section import ConfigSection


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
