"""The rejection slot: drops tokens and sequences that are too far off-policy."""

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from agentrl.config.section import ConfigSection, CustomMethod
from agentrl.errors import ConfigError

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


USUAL: dict[Statistic, tuple[float | None, float]] = {
    "token_k1": (0.5, 2.0),
    "seq_sum_k1": (0.5, 2.0),
    "seq_mean_k1": (0.999, 1.001),
    "token_k2": (None, 2.0),
    "seq_mean_k2": (None, 2.0),
    "seq_sum_k2": (None, 2.5),
    "seq_max_k2": (None, math.log(1e-4) ** 2 / 2),
    "seq_mean_k3": (None, 0.01),
}
"""Lower and upper bound where none is given; that of seq_max_k2 is a veto at 1e-4, both ways."""


class DivergenceRejection(ConfigSection):
    """Keep only tokens or sequences whose ratio of proximal over behaviour is within bounds
    (verl)."""

    name: Literal["divergence"] = "divergence"
    statistic: Statistic = "token_k1"
    """Statistic to bound: per token, or the sum, mean, or maximum over a trajectory. k1 is the
    ratio itself (its product, its geometric mean); k2 and k3 are divergences, which are 0 for equal
    policies."""
    lower: PositiveFloat | None = None
    """Minimum ratio to keep, for k1 only; null means 1 / upper."""
    upper: PositiveFloat | None = None
    """Maximum to keep: of the ratio for k1, of the divergence for k2 and k3. Null uses defaults: k1
    0.5 to 2 for a token and a sum, 0.999 to 1.001 for a mean; k2 2 for a token and a mean, 2.5 for
    a sum, 42.4 for a maximum; k3 0.01 for a mean. Other k3 statistics have no default."""


class VetoRejection(ConfigSection):
    """Drop a trajectory if the trainer finds one of its sampled tokens nearly impossible."""

    name: Literal["veto"] = "veto"
    floor: float = Field(default=1e-4, gt=0, le=1)
    """Minimum ratio of proximal over behaviour of any sampled token."""


class OpsmRejection(ConfigSection):
    """OPSM: drop the negative advantages of trajectories from which the policy has moved away."""

    name: Literal["opsm"] = "opsm"
    delta: NonNegativeFloat = 1e-4
    """Maximum mean of log(anchor / current) over a trajectory, in nats per token."""
    anchor: Literal["proximal", "behaviour"] = "proximal"
    """Policy to compare the current one with. With a single optimiser step the recomputed proximal
    policy equals the current one, and nothing is dropped."""


AnyRejection = Annotated[
    DivergenceRejection | VetoRejection | OpsmRejection | CustomMethod,
    Field(discriminator="name"),
]


def resolve_bounds(section: DivergenceRejection) -> tuple[float, float]:
    """Return the bounds of a statistic, of which only k1 has a lower one.

    Raises `ConfigError` for bounds that leave nothing between them, or that it does not have.
    """
    name, lower, upper = section.statistic, section.lower, section.upper
    if upper is None:
        if name not in USUAL:
            raise ConfigError(f"learn.rejection upper is null, but {name} has no default; set it")
        usual, upper = USUAL[name]
        lower = usual if lower is None else lower
    if not name.endswith("k1"):
        if lower is not None:
            raise ConfigError(
                f"learn.rejection lower is {lower}, but {name} is bounded only from above, because "
                "it is 0 for equal policies; remove lower"
            )
        return 0.0, upper
    lower = 1 / upper if lower is None else lower
    if lower > upper:
        raise ConfigError(
            f"learn.rejection lower is {lower} and upper is {upper}, so no ratio of {name} lies "
            "between them and everything would be dropped; a single bound must be at least 1"
        )
    return lower, upper
