"""Terms added to the policy loss whatever the method: a pull towards a reference policy."""

from typing import Literal

from pydantic import PositiveFloat

from agentrl.config.section import ConfigSection


class KlSection(ConfigSection):
    """KL(policy || first policy of the run), estimated on the sampled tokens and added to the loss;
    costs a frozen copy of the weights and a forward pass of it."""

    coefficient: PositiveFloat = 1e-3
    """Weight of the estimate in the loss."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of log(policy / reference) = d: d itself, d^2 / 2, or exp(-d) - 1 + d."""
    straight_through: bool = True
    """Keep the estimator's value and take the gradient of k2, which is the one of the reverse KL;
    k1's own is 0 on average, and k3's pulls like a forward KL."""
    off_policy: bool = False
    """Multiply by policy over behaviour, so that old tokens give no biased estimate either."""
