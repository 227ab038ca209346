"""Config section of the rollout topology: where trajectories branch."""

from typing import Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection

TopologyName = Literal["none", "aepo", "arpo", "aepo_paper", "arpo_paper", "tree_grpo", "fan_out"]


class BranchingSection(ConfigSection):
    """Rollout topology: the points at which trajectories branch; see docs/branching.md."""

    topology: TopologyName = "none"
    """Rule that chooses branch points. `aepo`, `arpo` (as in the released code) and `aepo_paper`,
    `arpo_paper`: turns at which the policy is less certain than at the start of the trajectory;
    `tree_grpo`: random positions; `fan_out`: the turns listed in `turns`; `none`: no branching."""
    split: Literal["online", "monitored", "static"] = "online"
    """Method of setting the number of root trajectories, which start at the prompt. `online`:
    estimated from trajectories that have ended; `monitored`: estimated from one trajectory that
    runs alone first; `static`: `roots`."""
    roots: int = Field(default=0, ge=0)
    """Number of root trajectories: with `online` until one has ended, with `static` and `fan_out`
    always. 0 means half of the group, or with `fan_out` as many as needed."""
    beam: PositiveInt = 2
    """Maximum number of trajectories that continue from one branch point, the original included; 1
    disables branching."""
    base: float = Field(default=0.5, ge=0, le=1)
    """Branch probability where the uncertainty has not risen: this value (`arpo`) or 1 minus this
    value (`aepo`). In the paper variants, the score there (alpha)."""
    weight: float = 4.0
    """Weight of the rise in uncertainty in the branch probability or score."""
    threshold: float = 0.5
    """Score above which a trajectory branches, in the paper variants."""
    penalty: float = Field(default=0.05, ge=0)
    """In `aepo` and `aepo_paper`: reduction of the branch probability for each consecutive branch
    on a path."""
    temperature: float = Field(default=10.0, gt=0)
    """Sensitivity of the share of root trajectories to the uncertainty signals, in `online` and
    `monitored`."""
    probe_tokens: PositiveInt = 20
    """Number of first tokens of a turn over which uncertainty is measured; they remain part of the
    turn."""
    top_logprobs: PositiveInt = 10
    """Number of log-probs requested from the engine per probed token."""
    path_branches: int | None = Field(default=None, ge=0)
    """Maximum number of branch points on one path."""
    budget_tokens: PositiveInt | None = None
    """Token budget for all trajectories of one task, with shared tokens counted once. When it is
    spent, no further trajectory starts, and the group may be smaller."""
    trees: PositiveInt = 2
    """In `tree_grpo`: number of trees per task, each of `1 + rounds * width` trajectories."""
    rounds: int = Field(default=1, ge=0)
    """In `tree_grpo`: number of times each tree is expanded."""
    width: PositiveInt = 2
    """In `tree_grpo`: new branches per round; in `fan_out`: trajectories that continue from each
    branch point."""
    turns: tuple[PositiveInt, ...] = ()
    """In `fan_out`: the turns at which every trajectory branches."""
