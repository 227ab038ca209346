"""Keys of an external inference server."""

from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentrl.config.section import ConfigSection


class EndpointSection(ConfigSection):
    """External inference servers (docs/engines.md), which serve the policy as their base model."""

    urls: list[str] = Field(min_length=1)
    """URLs including the API version, such as `http://localhost:8000/v1`; requests are distributed
    over all of them."""
    model: str = Field(min_length=1)
    """Name of the base model on the servers."""
    adapters: Path | None = None
    """Folder for the adapters of each version, which the servers read under the same path; null
    means `adapters` in the run folder."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; if it is not set, no key is sent."""
    silence_s: PositiveFloat = 300.0
    """Maximum time without data from the server before a request is sent again."""
    retries: NonNegativeInt = 8
    """Number of consecutive retries after responses 408, 409, 425, 429 and 5xx and lost
    connections, with waits of up to a minute; then the request fails."""
