"""The group reward slot: replaces the rewards of a group, before rewards are shaped."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.section import ConfigSection, CustomMethod


class MajorityReward(ConfigSection):
    """TTRL: 1 for the answer that most trajectories of the group give, 0 for another and for none.
    The environment's reward is not used."""

    name: Literal["majority"] = "majority"


class DareReward(ConfigSection):
    """DARE: a trajectory is paid the share of its answer in the group's votes, where votes of low
    entropy count more. The environment's reward is not used."""

    name: Literal["dare"] = "dare"
    minimum_share: float = Field(default=0.0, ge=0, lt=1)
    """Answers with a smaller share are dropped: they get 0, and the others share anew."""
    rarity_bonus: float = Field(default=0.0, ge=0)
    """Weight of a bonus for answers that are rare and of low entropy. The paper's value is not
    public."""


VOTES = (MajorityReward, DareReward)
"""Those that compare answers, which the environment has to report."""

AnyGroupReward = Annotated[MajorityReward | DareReward | CustomMethod, Field(discriminator="name")]
