"""The selection slot: which samples and tokens of a batch train, given their advantages."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from agentrl.config.section import ConfigSection, CustomMethod

Share = Annotated[float, Field(gt=0, le=1)]


class D3sSelection(ConfigSection):
    """D3S: the trajectories of the batch with the most extreme advantages, and among their tokens
    those with the highest |advantage| x entropy. Denominators count only what is kept, and the
    ratio of a whole sequence is that of its kept tokens."""

    name: Literal["d3s"] = "d3s"
    samples: tuple[Share, Share] = (0.25, 1.0)
    """Fraction of trajectories that train, at the first step and after the last one of `run.steps`,
    interpolated linearly; at least two."""
    tokens: tuple[Share, Share] = (0.2, 1.0)
    """Fraction of the tokens of those trajectories that train, interpolated likewise; at least
    one."""


class OverlongSelection(ConfigSection):
    """DAPO's overlong filter: a trajectory truncated by a limit counts in its group's baseline but
    does not train."""

    name: Literal["overlong"] = "overlong"


class PivotSelection(ConfigSection):
    """MC-GRPO's pivot: the trajectory whose reward is the median of its group does not train, and
    is in no denominator. Groups have one trajectory more than train: set an odd
    `rollout.group_size`. It has to be the first selection."""

    name: Literal["pivot"] = "pivot"


class BranchPruningSelection(ConfigSection):
    """BranchGRPO's pruning: parts of a tree keep their place in the advantages but do not train.
    Depths are counted in branch points."""

    name: Literal["branch_pruning"] = "branch_pruning"
    width: Literal["all", "half", "extremes"] = "half"
    """Trajectories that train after their last branch point: `all`, the better `half` of each
    branch point, or the best and the worst of the group (`extremes`)."""
    depths: tuple[NonNegativeInt, ...] = ()
    """Depths that do not train at first, 0 before the first branch point, as in [0]; empty prunes
    no depth. What comes after the last branch point of a group always trains."""
    slide_steps: PositiveInt = 30
    """Training steps after which `depths` move one deeper, up to the last branch point."""


AnySelection = Annotated[
    D3sSelection | OverlongSelection | PivotSelection | BranchPruningSelection | CustomMethod,
    Field(discriminator="name"),
]
