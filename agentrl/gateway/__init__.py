"""An endpoint for agent programs as they are: they ask over HTTP, and the policy answers.

Three protocols (`chat.py`, `responses.py`, `anthropic.py`) say the same, `dialogue.py`; each turns
the bodies of its requests into it and back, purely. `desk.py` is where a question waits for its
answer, `server.py` the endpoint. What asks is an episode of `agentrl_envs.blackbox`.
"""

from agentrl.gateway.dialect import BadRequest, ChatRequest
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.session import GatewayRequest, GatewaySession

__all__ = ["BadRequest", "ChatRequest", "GatewayRequest", "GatewayServer", "GatewaySession"]
