"""vLLM as a policy engine; needs the extra `vllm`, or vLLM's CPU build."""

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.settings import VllmSettings

__all__ = ["VllmEngine", "VllmSettings"]
