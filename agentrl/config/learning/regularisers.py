"""Terms added to the policy loss of any method: a penalty on the distance from a reference
policy."""

from typing import Literal

from pydantic import PositiveFloat

from agentrl.config.section import ConfigSection


class KlSection(ConfigSection):
    """KL(policy || initial policy of the run), estimated on the sampled tokens and added to the
    loss; costs a frozen copy of the weights and its forward pass."""

    coefficient: PositiveFloat = 1e-3
    """Weight of the estimate in the loss."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator, with d = log(policy / reference): k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 +
    d."""
    straight_through: bool = True
    """Use the estimator's value with the gradient of k2, which is that of the reverse KL; the
    gradient of k1 is 0 in expectation, and that of k3 resembles a forward KL."""
    off_policy: bool = False
    """Multiply by policy over behaviour, so that stale tokens do not bias the estimate."""
