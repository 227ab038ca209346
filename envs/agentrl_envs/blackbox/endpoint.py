"""Endpoint of the model that a program is to use."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.gateway.server import MODEL, GatewayAddress


@dataclass(frozen=True, slots=True)
class ProgramEndpoint:
    """The address of one episode; good until the episode ends."""

    openai_url: str
    """`base_url` of OpenAI's clients: chat completions and responses."""
    anthropic_url: str
    """`base_url` of Anthropic's clients: messages."""
    key: str
    """API key, where a client insists on one."""
    model: str = MODEL

    @classmethod
    def from_address(cls, place: GatewayAddress) -> "ProgramEndpoint":
        """Return the endpoint of a place at the gateway."""
        return cls(openai_url=f"{place.url}/v1", anthropic_url=place.url, key=place.key)

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the variables from which the official clients take their defaults."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "AGENTRL_MODEL": self.model,
        }
