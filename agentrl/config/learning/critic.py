"""The critic: a small head that says what a context is worth."""

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentrl.config.section import ConfigSection


class CriticSection(ConfigSection):
    """A head on the policy's last hidden states, with an optimiser of its own."""

    hidden_size: NonNegativeInt = 0
    """Width of a layer between hidden states and value; 0 makes the head linear."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the head."""
    max_grad_norm: PositiveFloat = 1.0
    """A longer gradient of the head is shortened to this."""
    clip: PositiveFloat | None = 0.5
    """A value earns nothing by moving further than this from that at batch start; null lets it."""
    shared: bool = False
    """Let the head's loss move the policy too; off, the head only reads its hidden states."""
    coefficient: float = Field(default=0.1, gt=0)
    """With `shared`: weight of the critic's loss, which is added to the policy's."""
