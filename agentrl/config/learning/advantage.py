"""The advantage slot: credit of each token of each trajectory."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection, CustomMethod


class GroupScore(ConfigSection):
    """Group-relative reward statistics, shared by methods that start from them."""

    normalise_std: bool = True
    """Divide by the group's standard deviation; false gives Dr. GRPO's centred reward."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage in a group of one trajectory: zero or the raw reward."""


class GrpoAdvantage(GroupScore):
    """GRPO: reward minus the group mean, divided by the group's standard deviation."""

    name: Literal["grpo"] = "grpo"


class ArpoAdvantage(GroupScore):
    """ARPO: GRPO on a tree, where trajectories share tokens."""

    name: Literal["arpo"] = "arpo"
    shared: Literal["soft", "hard"] = "soft"
    """Credit of a shared token: per trajectory (`soft`), or the mean over all trajectories that
    share it (`hard`)."""


class AepoAdvantage(GroupScore):
    """AEPO: ARPO's credit, increased on tokens with high policy entropy."""

    name: Literal["aepo"] = "aepo"
    shared: Literal["soft", "hard"] = "soft"
    """As in `arpo`."""
    weight: float = Field(default=0.2, ge=0)
    """Increase of the factor per standard deviation of the batch's entropies. The factor is at
    least 0."""


class EchoAdvantage(GroupScore):
    """GRPO with ECHO's shaping: more credit, of either sign, where the policy was unsure. Only that
    part of ECHO is here."""

    name: Literal["echo"] = "echo"
    multiplier: float = Field(default=0.1, ge=0)
    """Increase of the factor per unit of the signal."""
    entropy_weight: float = Field(default=1.0, ge=0)
    """Weight of the whitened entropy in the signal."""
    doubt_weight: float = Field(default=1.0, ge=0)
    """Weight of the whitened 1 - p in the signal, p the sampled token's probability."""
    limit: PositiveFloat = 2.0
    """Absolute bound of the signal. With `multiplier` x `limit` below 1 no advantage changes its
    sign."""


class TreeGrpoAdvantage(GroupScore):
    """Tree-GRPO: advantage among all trajectories of the task and among those of the same tree."""

    name: Literal["tree_grpo"] = "tree_grpo"
    variant: Literal["tree", "tree_inner", "tree_2norm"] = "tree"
    """`tree`: the sum of both; `tree_inner`: only the one within the tree; `tree_2norm`: the one
    within the tree, applied to the first."""


class TreeRlAdvantage(ConfigSection):
    """TreeRL: the value of a segment, and its gain over the preceding segment."""

    name: Literal["tree_rl"] = "tree_rl"
    global_term: bool = True
    """Include the value of the segment itself; false leaves only the difference to the preceding
    segment."""
    weighting: Literal["none", "sqrt", "uniform"] = "sqrt"
    """Weight of a segment in each of the n trajectories that share it: 1, 1 / sqrt(n), or 1 / n."""
    weighted: Literal["reward", "value"] = "reward"
    """Value to weight: a segment's reward (paper), or each value in it by its own n (code)."""
    centre: Literal["token", "none"] = "token"
    """`token`: subtract the mean over the tokens of all trajectories of the task from each value;
    `none`: do not centre."""
    truncated: float | None = None
    """Centred reward of trajectories truncated by a limit, -1 in the released code; null keeps the
    actual one."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage in a group of one trajectory: zero or the raw reward."""


class BranchGrpoAdvantage(ConfigSection):
    """BranchGRPO: a segment compared with the task's segments at the same number of branch
    points."""

    name: Literal["branch_grpo"] = "branch_grpo"
    value: Literal["mean", "probability"] = "mean"
    """Value of a segment. `mean`: the mean reward of the trajectories that contain it;
    `probability`: computed recursively from the segments that follow it, weighted by the softmax of
    their log-probs."""
    temperature: PositiveFloat = 1.0
    """Temperature of that softmax."""
    epsilon: PositiveFloat = 1e-8
    """Added to the standard deviation."""
    weighting: Literal["none", "sqrt", "uniform"] = "uniform"
    """As in `tree_rl`; 1 / n makes a shared token count once."""
    clip: PositiveFloat | None = 5.0
    """Absolute bound of the advantage; null sets none."""


class RlooAdvantage(ConfigSection):
    """RLOO: reward minus the mean reward of the other trajectories in the group."""

    name: Literal["rloo"] = "rloo"
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage in a group of one trajectory: zero or the raw reward."""


class ReinforcePpAdvantage(ConfigSection):
    """REINFORCE++: discounted return of each token, whitened over all tokens of the batch."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per trained token; environment tokens are not discounted."""
    paid: Literal["turns", "end"] = "end"
    """Time at which a reward counts: at the turn for which the environment paid it (`turns`), or at
    the end (`end`)."""


class ReinforcePpBaselineAdvantage(ConfigSection):
    """REINFORCE++ with a baseline: reward minus the group mean, whitened over all tokens."""

    name: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    singleton: Literal["zero", "raw"] = "zero"
    """Value for a group of one trajectory before whitening: zero or the raw reward."""


class GaeAdvantage(ConfigSection):
    """Generalised advantage estimation over a critic's values; needs `learn.critic`."""

    name: Literal["gae"] = "gae"
    level: Literal["token", "turn"] = "token"
    """Unit of a step: a trained token, or a turn of the policy."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda: 1 uses full returns, 0 relies on the critic after one step."""
    paid: Literal["turns", "end"] = "turns"
    """Time at which a reward counts: at the turn for which the environment paid it (`turns`), or at
    the end (`end`)."""
    whiten: bool = True
    """Whiten advantages to mean 0 and variance 1 over all tokens of the batch."""


class SegmentReinforceAdvantage(ConfigSection):
    """ROLL's segment REINFORCE: discounted return of each contiguous run of sampled tokens."""

    name: Literal["segment_reinforce"] = "segment_reinforce"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per segment."""
    whiten: bool = False
    """Whiten to mean 0 and variance 1 over all tokens of the batch; false applies no baseline."""


class GigpoAdvantage(ConfigSection):
    """GiGPO: a trajectory relative to its group, plus a turn relative to turns from the same
    state."""

    name: Literal["gigpo"] = "gigpo"
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per turn."""
    omega: float = Field(default=1.0, ge=0)
    """Weight of the turn-level term."""
    normalise_std: bool = False
    """Divide by the standard deviation: true is the mode mean_std_norm, false mean_norm."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    similarity: float | None = Field(default=None, gt=0, le=1)
    """Minimum similarity of the states before two turns, such as 0.95; null requires equality."""
    count: Literal["trajectory", "turn"] = "trajectory"
    """Weight of a trajectory in its group's statistics: once, or once per turn."""
    singleton: Literal["zero", "raw"] = "zero"
    """Trajectory-level term in a group of one trajectory: zero or the raw reward."""


class UiS1Advantage(ConfigSection):
    """UI-S1: a turn's discounted return relative to turns with the same index in the group, plus an
    episode-level term."""

    name: Literal["ui_s1"] = "ui_s1"
    gamma: float = Field(default=0.5, ge=0, le=1)
    """Discount per turn."""
    omega: float = Field(default=1.0, ge=0)
    """Weight of the turn-level term."""
    episode_weight: float = Field(default=1.0, ge=0)
    """Weight of the episode-level term."""
    returns: Literal["code", "paper"] = "code"
    """Reward of a mismatched turn: included only in its own return (`code`), or also in earlier
    ones (`paper`)."""
    episode_term: Literal["trajectory_return", "first_return", "row_reward"] = "trajectory_return"
    """Episode-level term. `trajectory_return`: the sum of turn rewards; `first_return`: the return
    of the first turn; `row_reward`: as in the released code, each turn's own reward among all turns
    of the group."""
    match_reward: float = 1.0
    """Turns with a lower reward count as mismatched."""
    normalise_std: bool = True
    """Divide by the standard deviation: true is the mode mean_std_norm, false mean_norm."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Episode-level term in a group of one trajectory: zero or the raw reward."""


class MilestonesAdvantage(ConfigSection):
    """Milestones, after SCRL: the turns on the way to each milestone, compared with those of the
    group, by whether it and all before it were reached. The environment has to report them."""

    name: Literal["milestones"] = "milestones"
    deviation: Literal["population", "unbiased"] = "population"
    """Standard deviation to divide by; the paper does not say which."""


class NudgeAdvantage(ConfigSection):
    """NudgeRL's first term: a trajectory compared with those that were given the same strategy, and
    its strategy with the task's others. The environment has to suggest strategies."""

    name: Literal["nudge"] = "nudge"
    between: float = Field(default=1.1, ge=0)
    """Weight of the comparison among strategies."""
    epsilon: PositiveFloat = 1e-5
    """Added to the standard deviation."""


class McGrpoAdvantage(ConfigSection):
    """MC-GRPO: reward minus the group median, divided by its median absolute deviation."""

    name: Literal["mc_grpo"] = "mc_grpo"
    epsilon: float = Field(default=1e-3, ge=0)
    """Added to the median absolute deviation."""
    floor: PositiveFloat = 0.1
    """Minimum scale; binary rewards have a median absolute deviation of 0."""
    limit: PositiveFloat | None = 5.0
    """Clip advantages to +- this value; null does not clip."""


class GapoAdvantage(ConfigSection):
    """GAPO: reward minus the centre of the densest interval of the group."""

    name: Literal["gapo"] = "gapo"
    share: float = Field(default=0.5, gt=0, le=1)
    """Fraction of the group that the interval contains."""
    centre: Literal["median", "mean"] = "median"
    """Centre of the interval: its median or its mean."""
    normalise_std: bool = True
    """Divide by the deviation around the centre."""
    epsilon: PositiveFloat = 1e-6
    """Added to the deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage in a group of one trajectory: zero or the raw reward."""


class PoiseAdvantage(ConfigSection):
    """After POISE: reward minus a baseline that is read off the policy's hidden states on the other
    trajectories of the group. A ridge regression predicts rewards from them; made for
    `rollout.group_size: 2`."""

    name: Literal["poise"] = "poise"
    layer: PositiveInt | None = None
    """Layer whose outputs are read, counted from 1; null takes the one at 0.6 of the depth."""
    tokens: PositiveInt = 10
    """Number of tokens over which hidden states are averaged: at the end of the prompt, and at the
    end of the trajectory."""
    penalty: PositiveFloat | None = None
    """Penalty of the ridge regression, on standardised features; null takes the one that
    predicted the latest steps best. The paper has 0.01, for thousands of trajectories per fit."""
    buffer_steps: PositiveInt = 8
    """Number of the latest steps whose trajectories the regression is fitted to."""


class XrpoAdvantage(GroupScore):
    """GRPO with XRPO's novelty sharpening: unlikely correct trajectories get a bonus."""

    name: Literal["xrpo"] = "xrpo"
    bonus: float = Field(default=2.5, ge=0)
    """Lambda: factor of 1 - novelty score."""
    cap: float = Field(default=0.5, ge=0)
    """Kappa: maximum bonus relative to the advantage."""
    correct_reward: float = 1.0
    """Minimum reward of a correct trajectory."""
    logprobs: Literal["behaviour", "proximal"] = "behaviour"
    """Policy that defines unlikely: the one that sampled (`behaviour`), or the trainer's at batch
    start (`proximal`), which costs a forward pass."""


AnyAdvantage = Annotated[
    GrpoAdvantage
    | RlooAdvantage
    | ReinforcePpAdvantage
    | ReinforcePpBaselineAdvantage
    | GaeAdvantage
    | SegmentReinforceAdvantage
    | GigpoAdvantage
    | UiS1Advantage
    | MilestonesAdvantage
    | NudgeAdvantage
    | McGrpoAdvantage
    | GapoAdvantage
    | PoiseAdvantage
    | XrpoAdvantage
    | ArpoAdvantage
    | AepoAdvantage
    | EchoAdvantage
    | TreeGrpoAdvantage
    | TreeRlAdvantage
    | BranchGrpoAdvantage
    | CustomMethod,
    Field(discriminator="name"),
]
