"""A server that somebody else started, as a policy engine that trains: see `CompletionsEngine`."""

from agentrl.engine.endpoint.engine import CompletionsEngine
from agentrl.engine.endpoint.servers import Servers
from agentrl.engine.endpoint.settings import ServerSettings

__all__ = ["CompletionsEngine", "ServerSettings", "Servers"]
