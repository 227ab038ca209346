"""Any OpenAI-compatible endpoint as the policy of an evaluation.

An endpoint takes and returns messages, and an episode holds tokens. Here a token is a byte: `chat`
writes each message as a line of JSON, and `engine` reads the lines back and asks the endpoint. So
everything else (environments, records, budgets of turns and time, reports) is as it always is.
There are no weights behind it and no log-probs, so nothing of it can train; what trains asks for
tokens (`agentrl.engine.endpoint`).
"""

from agentrl.evaluation.endpoint.chat import EndpointChat
from agentrl.evaluation.endpoint.engine import EndpointEngine
from agentrl.runtime.http_endpoint import HttpEndpoint

__all__ = ["EndpointChat", "EndpointEngine", "HttpEndpoint"]
