"""Low-rank adapters instead of full weights."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class LoraSection(ConfigSection):
    """LoRA: W + alpha / rank x B A, where only A and B train; requires the `lora` extra (peft)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """Scale of the adapters, divided by `rank`."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A during training; the trained policy then differs slightly from the
    one that sampled."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Modules that get adapters, by the last parts of their names; `all-linear` means all linear
    layers except the head."""
