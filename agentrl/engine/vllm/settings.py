"""What can be said of a vLLM engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """A model, and the room it gets."""

    model: Path
    """A Hugging Face folder with config and weights."""
    slots: int = 32
    """How many requests are computed at once."""
    context_tokens: int = 2048
    dtype: str = "auto"
    """`auto` is the model's own; or `float32`, `bfloat16`, `float16`."""
    enforce_eager: bool = False
    """Whether to go without CUDA graphs; on a CPU it always does."""
    prefix_cache: bool = True
    prefill_tokens: int | None = None
    """At most so many tokens of prompts and samples in one step; vLLM's own choice unless set."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument of vLLM's `EngineArgs`, such as `tensor_parallel_size`."""
