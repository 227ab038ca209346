"""vLLM as a policy engine: its own server by its public interface, or, `in_process`, its core."""

from agentrl.engine.vllm.launch import VllmServerSettings
from agentrl.engine.vllm.server import VllmServerEngine, VllmServerRecipe, VllmServers

__all__ = ["VllmServerEngine", "VllmServerRecipe", "VllmServerSettings", "VllmServers"]
