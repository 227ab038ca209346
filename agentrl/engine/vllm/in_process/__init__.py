"""vLLM in this process, stepped by us: what its public interface cannot do is done in its core.

It samples what the local engine samples, scores under any distribution, and shows images, by the
parts of vLLM's core that do so in the releases that `vllm_release` admits.
"""

from agentrl.engine.vllm.in_process.engine import VllmEngine
from agentrl.engine.vllm.in_process.settings import VllmSettings

__all__ = ["VllmEngine", "VllmSettings"]
