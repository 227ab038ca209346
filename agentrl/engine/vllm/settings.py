"""What can be said of a vLLM engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPU_CACHE_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """A model, and the room it gets."""

    model: Path | str
    """A Hugging Face folder with config and weights, or a name on the hub."""
    slots: int = 32
    """How many requests are computed at once."""
    context_tokens: int = 2048
    dtype: str = "auto"
    """`auto` is the model's own; or `float32`, `bfloat16`, `float16`."""
    memory_fraction: float = 0.45
    """Share of a GPU's memory for weights and keys; a trainer needs some of what is left."""
    cache_bytes: int | None = None
    """Room for keys instead of a share; on a CPU, `CPU_CACHE_BYTES` unless set."""
    eager: bool = False
    """Whether to go without CUDA graphs; on a CPU it always does."""
    prefix_cache: bool = True
    prefill_tokens: int | None = None
    """At most so many tokens of prompts and samples in one step; vLLM's own choice unless set."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument of vLLM's `EngineArgs`, such as `tensor_parallel_size`."""
