"""The advantage slot: credit of every token of every trajectory."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection


class GroupScore(ConfigSection):
    """Comparison of the rewards of a group, for every method that begins with it."""

    normalise_std: bool = True
    """Off gives Dr.GRPO's centred reward."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


class GrpoAdvantage(GroupScore):
    """GRPO: reward minus the group's mean, over its standard deviation."""

    name: Literal["grpo"] = "grpo"


class ArpoAdvantage(GroupScore):
    """ARPO: GRPO in a tree, where trajectories share tokens."""

    name: Literal["arpo"] = "arpo"
    shared: Literal["soft", "hard"] = "soft"
    """Credit of a shared token in a trajectory: its own (`soft`) or the mean of all (`hard`)."""


class AepoAdvantage(GroupScore):
    """AEPO: ARPO's credit, more of it on tokens the policy was unsure of, by their entropy."""

    name: Literal["aepo"] = "aepo"
    shared: Literal["soft", "hard"] = "soft"
    """As in `arpo`."""
    weight: float = Field(default=0.2, ge=0)
    """Increase of the factor per standard deviation of the batch's entropies. The factor is never
    below 0."""


class TreeGrpoAdvantage(GroupScore):
    """Tree-GRPO: a trajectory among all of its task and among those of its tree."""

    name: Literal["tree_grpo"] = "tree_grpo"
    variant: Literal["tree", "tree_inner", "tree_2norm"] = "tree"
    """The sum of both, the second alone, or the second taken of the first."""


class TreeRlAdvantage(ConfigSection):
    """TreeRL: what a segment is worth and what it is worth more than the one before it."""

    name: Literal["tree_rl"] = "tree_rl"
    global_term: bool = True
    """Off leaves only the difference to the segment before."""
    weighting: Literal["none", "sqrt", "uniform"] = "sqrt"
    """Weight of a segment in each of the n trajectories that share it: 1, 1 / sqrt(n), 1 / n."""
    weighted: Literal["reward", "value"] = "reward"
    """Weighted value: a segment's reward (paper), or each value in it by its own n (code)."""
    centre: Literal["token", "none"] = "token"
    """Take the mean over the tokens of all trajectories of the task from every value, or not."""
    truncated: float | None = None
    """Stands for the centred reward of what a limit ended, -1 in the code; null keeps its own."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


class BranchGrpoAdvantage(ConfigSection):
    """BranchGRPO: a segment among those of its task that are as many branch points deep."""

    name: Literal["branch_grpo"] = "branch_grpo"
    value: Literal["mean", "probability"] = "mean"
    """Of a segment: the mean reward of the trajectories that hold it, or recursively that of the
    segments after it, weighed by the softmax of their log-probs."""
    temperature: PositiveFloat = 1.0
    """Temperature of that softmax."""
    epsilon: PositiveFloat = 1e-8
    """Added to the standard deviation."""
    weighting: Literal["none", "sqrt", "uniform"] = "uniform"
    """As in `tree_rl`; 1 / n makes a shared token count once."""
    clip: PositiveFloat | None = 5.0
    """Bound of the advantage in either direction; null sets none."""


class RlooAdvantage(ConfigSection):
    """RLOO: reward minus the mean of the others in the group."""

    name: Literal["rloo"] = "rloo"
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


class ReinforcePpAdvantage(ConfigSection):
    """REINFORCE++: discounted return of each token, whitened over all tokens of the batch."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per trained token; what the environment says costs nothing."""
    paid: Literal["turns", "end"] = "end"
    """Moment at which a reward is earned: as the environment paid it, or at the end."""


class ReinforcePpBaselineAdvantage(ConfigSection):
    """REINFORCE++ with a baseline: reward minus the group's mean, whitened over all tokens."""

    name: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    singleton: Literal["zero", "raw"] = "zero"
    """Value of a group of one trajectory before whitening."""


class GaeAdvantage(ConfigSection):
    """Generalised advantage estimation over a critic's values; needs `learn.critic`."""

    name: Literal["gae"] = "gae"
    level: Literal["token", "turn"] = "token"
    """A step is a trained token, or a turn of the policy."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda: 1 takes whole returns, 0 trusts the critic after one step."""
    paid: Literal["turns", "end"] = "turns"
    """Moment at which a reward is earned: as the environment paid it, or at the end."""
    whiten: bool = True
    """To mean 0 and variance 1 over all tokens of the batch."""


class SegmentReinforceAdvantage(ConfigSection):
    """ROLL's segment REINFORCE: discounted return of each uninterrupted run of sampled tokens."""

    name: Literal["segment_reinforce"] = "segment_reinforce"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per segment."""
    whiten: bool = False
    """To mean 0 and variance 1 over all tokens of the batch; off leaves it without a baseline."""


class GigpoAdvantage(ConfigSection):
    """GiGPO: a trajectory against its group, plus a turn against turns from the same situation."""

    name: Literal["gigpo"] = "gigpo"
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per turn."""
    omega: float = Field(default=1.0, ge=0)
    """Weight of the turn's part."""
    normalise_std: bool = False
    """Off is the mode mean_norm, on mean_std_norm."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    similarity: float | None = Field(default=None, gt=0, le=1)
    """Least similarity of what precedes two turns, such as 0.95; null requires equality."""
    count: Literal["trajectory", "turn"] = "trajectory"
    """Count of a trajectory in its group's statistics: once, or once per turn."""
    singleton: Literal["zero", "raw"] = "zero"
    """The trajectory's part in a group of one."""


class UiS1Advantage(ConfigSection):
    """UI-S1: a turn's discounted future among the group's turns of its index, plus an episode's."""

    name: Literal["ui_s1"] = "ui_s1"
    gamma: float = Field(default=0.5, ge=0, le=1)
    """Discount per turn."""
    omega: float = Field(default=1.0, ge=0)
    """Weight of the turn's part."""
    episode_weight: float = Field(default=1.0, ge=0)
    """Weight of the episode's part."""
    returns: Literal["code", "paper"] = "code"
    """The reward of a mismatched turn: in its own return only, or in earlier ones too."""
    episode_term: Literal["trajectory_return", "first_return", "row_reward"] = "trajectory_return"
    """Sum of turn rewards; return of the first turn; or, as in the code, each turn's own reward
    among all turns of the group."""
    match_reward: float = 1.0
    """A turn that was paid less than this is mismatched."""
    normalise_std: bool = True
    """On is the mode mean_std_norm, off mean_norm."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """The episode's part in a group of one."""


class McGrpoAdvantage(ConfigSection):
    """MC-GRPO: reward minus the group's median, over its median absolute deviation."""

    name: Literal["mc_grpo"] = "mc_grpo"
    epsilon: float = Field(default=1e-3, ge=0)
    """Added to the median absolute deviation."""
    floor: PositiveFloat = 0.1
    """The scale is at least this; binary rewards have a deviation of 0."""
    limit: PositiveFloat | None = 5.0
    """Advantages are cut to +- this; null leaves them."""


class GapoAdvantage(ConfigSection):
    """GAPO: reward minus the centre of the group's densest interval."""

    name: Literal["gapo"] = "gapo"
    share: float = Field(default=0.5, gt=0, le=1)
    """Share of the group that the interval holds."""
    centre: Literal["median", "mean"] = "median"
    """Centre of the interval."""
    normalise_std: bool = True
    """Divide by the deviation around that centre."""
    epsilon: PositiveFloat = 1e-6
    """Added to the deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


class XrpoAdvantage(GroupScore):
    """GRPO with XRPO's novelty sharpening: unlikely correct trajectories get more."""

    name: Literal["xrpo"] = "xrpo"
    bonus: float = Field(default=2.5, ge=0)
    """Lambda: times 1 - novelty score."""
    cap: float = Field(default=0.5, ge=0)
    """Kappa: the bonus is at most this times the advantage."""
    correct_reward: float = 1.0
    """A trajectory with at least this reward is correct."""
    logprobs: Literal["behaviour", "proximal"] = "behaviour"
    """By which policy it is unlikely: the one that sampled, or the trainer's at batch start, which
    costs a forward pass."""


AnyAdvantage = Annotated[
    GrpoAdvantage
    | RlooAdvantage
    | ReinforcePpAdvantage
    | ReinforcePpBaselineAdvantage
    | GaeAdvantage
    | SegmentReinforceAdvantage
    | GigpoAdvantage
    | UiS1Advantage
    | McGrpoAdvantage
    | GapoAdvantage
    | XrpoAdvantage
    | ArpoAdvantage
    | AepoAdvantage
    | TreeGrpoAdvantage
    | TreeRlAdvantage
    | BranchGrpoAdvantage
    | CustomMethod,
    Field(discriminator="name"),
]
