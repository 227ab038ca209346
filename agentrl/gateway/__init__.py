"""An endpoint for agent programs as they are: they ask over HTTP, and the policy answers.

Three protocols (`chat.py`, `responses.py`, `anthropic.py`) are dialects of one conversation
(`dialect.py`); each turns the bodies of its requests into it and back, purely. A request waits in
its session (`session.py`) for the policy's answer; `server.py` is the endpoint, `listening.py`
where it is reached. The programs are those of `agentrl_envs.blackbox`.
"""

from agentrl.gateway.dialect import BadRequest, ChatRequest
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.session import GatewayRequest, GatewaySession

__all__ = ["BadRequest", "ChatRequest", "GatewayRequest", "GatewayServer", "GatewaySession"]
