"""The critic: a small head that estimates the value of a context."""

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentrl.config.section import ConfigSection


class CriticSection(ConfigSection):
    """Value head on the policy's last hidden states, with its own optimiser."""

    hidden_size: NonNegativeInt = 0
    """Width of a hidden layer between hidden states and value; 0 makes the head linear."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the head."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm of the head; larger gradients are clipped."""
    clip: PositiveFloat | None = 0.5
    """Value clipping: maximum change from the value at batch start that lowers the loss; null
    disables it."""
    shared: bool = False
    """Let the critic's loss train the policy's weights too; false trains only the head."""
    coefficient: float = Field(default=0.1, gt=0)
    """With `shared`: weight of the critic's loss, which is added to the policy loss."""
