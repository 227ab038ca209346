"""A server as a policy engine that trains: token ids in and out, and weights that it is given."""

from agentrl.engine.endpoint.engine import CompletionsEngine, EndpointReplicas
from agentrl.engine.endpoint.settings import ServerSettings
from agentrl.engine.endpoint.weights_engine import WeightsEngine

__all__ = ["CompletionsEngine", "EndpointReplicas", "ServerSettings", "WeightsEngine"]
