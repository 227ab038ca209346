"""Settings of vLLM in this process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

ONE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Arguments of vLLM that must be 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """A model, and the room it gets."""

    model: Path | str
    """A Hugging Face folder with config and weights, or a name on the hub."""
    slots: int = 32
    context_tokens: int = 2048
    dtype: str = "auto"
    """`auto` is the model's own; or `float32`, `bfloat16`, `float16`."""
    memory_fraction: float = 0.45
    """Share of a GPU's memory for weights and keys; a trainer needs some of what is left."""
    cache_bytes: int | None = None
    """Room for keys instead of a share; on a CPU, `CPU_CACHE_BYTES` unless set."""
    eager: bool = False
    """True to go without CUDA graphs; on a CPU it always does."""
    prefix_cache: bool = True
    prefill_tokens: int | None = None
    """Most tokens of prompts and samples in one step; vLLM's own choice unless set."""
    adapter_rank: int | None = None
    """Room for vLLM's own adapters, of up to this rank; None merges adapters into the weights."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument of vLLM's `EngineArgs`, such as `quantization`."""

    def __post_init__(self) -> None:
        for name in ONE:
            if (value := self.options.get(name, 1)) != 1:
                raise ConfigError(
                    f"engine.vllm.options.{name} is {value!r} and engine.vllm.sampler is agentrl, "
                    "which runs vLLM in one process; remove one of the two"
                )
