"""A server that somebody else started, as a policy engine that trains: see `CompletionsEngine`."""

from agentrl.engine.endpoint.engine import CompletionsEngine, EndpointReplicas
from agentrl.engine.endpoint.settings import ServerSettings

__all__ = ["CompletionsEngine", "EndpointReplicas", "ServerSettings"]
