"""Low-rank adapters in place of all weights."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class LoraSection(ConfigSection):
    """LoRA: W + alpha / rank x B A, of which only A and B train; needs the `lora` extra (peft)."""

    rank: PositiveInt = 16
    """Rows of A, columns of B."""
    alpha: PositiveFloat = 32.0
    """Over `rank`, the weight of the adapters."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On what goes into A, in passes with gradient; the policy that trains is then not quite the
    one that sampled."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Modules that get adapters, by the last parts of their names; or every linear one but the
    head."""
