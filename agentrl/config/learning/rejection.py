"""The rejection slot: tokens and sequences that do not train because they are too far off."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection

Statistic = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


class DivergenceRejection(ConfigSection):
    """Keep the tokens or sequences whose proximal over behaviour is within bounds (verl)."""

    name: Literal["divergence"] = "divergence"
    statistic: Statistic = "token_k1"
    """Statistic that is bounded: of a token, or the sum, mean or largest of a trajectory. For k1 it
    is the ratio itself (its product, its geometric mean); k2 and k3 are divergences, 0 where
    nothing differs."""
    lower: PositiveFloat | None = None
    """Least ratio that is kept, for k1 alone; null is 1 / upper."""
    upper: PositiveFloat | None = None
    """Greatest that is kept: of the ratio for k1, of the divergence for k2 and k3. Null takes what
    is usual: k1 0.5 to 2 for a token and a sum, 0.999 to 1.001 for a mean; k2 2 for a token and a
    mean, 2.5 for a sum, 42.4 for the largest; k3 0.01 for a mean. There is none for other k3."""


class VetoRejection(ConfigSection):
    """Drop a trajectory for a single sampled token that the trainer finds all but impossible."""

    name: Literal["veto"] = "veto"
    floor: float = Field(default=1e-4, gt=0, le=1)
    """Least proximal over behaviour of any sampled token."""


class OpsmRejection(ConfigSection):
    """Drop the negative credit of trajectories that the policy has moved away from."""

    name: Literal["opsm"] = "opsm"
    delta: NonNegativeFloat = 1e-4
    """Greatest mean of log(anchor / current) over a trajectory, in nats per token."""
    anchor: Literal["proximal", "behaviour"] = "proximal"
    """Policy that the current one is compared with. In a single optimiser step the recomputed
    proximal policy is the current one, and nothing is dropped."""


AnyRejection = Annotated[
    DivergenceRejection | VetoRejection | OpsmRejection | CustomMethod,
    Field(discriminator="name"),
]
