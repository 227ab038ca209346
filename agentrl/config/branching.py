"""The section of a config that says where trajectories branch."""

from typing import Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection

TopologyName = Literal["none", "aepo", "arpo", "aepo_paper", "arpo_paper", "tree_grpo", "fan_out"]


class BranchingSection(ConfigSection):
    """Rules by which trajectories branch; see docs/branching.md."""

    topology: TopologyName = "none"
    """Rule for branch points. `aepo`, `arpo` (from the code) and `aepo_paper`, `arpo_paper`: turns
    at which the policy is less certain than at its start; `tree_grpo`: random places; `fan_out`:
    the turns in `turns`; `none`: nowhere."""
    split: Literal["online", "monitored", "static"] = "online"
    """Rule for the number of a task's trajectories that begin at the prompt. `online`: estimated
    from those that have ended; `monitored`: from one that runs alone first; `static`: `roots`."""
    roots: int = Field(default=0, ge=0)
    """Trajectories that begin at the prompt: with `online` until one has ended, with `static` and
    `fan_out` always. 0 is half of them, and with `fan_out` as many as it takes."""
    beam: PositiveInt = 2
    """Trajectories that one place may make of one, itself among them; 1 never branches."""
    base: float = Field(default=0.5, ge=0, le=1)
    """The chance of a branch where the uncertainty has not risen is this (`arpo`) or one less this
    (`aepo`); in the papers' forms the score there (alpha)."""
    weight: float = 4.0
    """Weight of a rise of the uncertainty in the chance of a branch, or in the score."""
    threshold: float = 0.5
    """Score above which a trajectory branches, in the papers' forms."""
    penalty: float = Field(default=0.05, ge=0)
    """In `aepo` and `aepo_paper`: the share that each branch in a row on a path takes away."""
    temperature: float = Field(default=10.0, gt=0)
    """Strength of the signals on the share of roots, in `online` and `monitored`."""
    probe_tokens: PositiveInt = 20
    """First tokens of a turn over which the uncertainty is measured; they are the turn's own."""
    top_logprobs: PositiveInt = 10
    """Log-probs per probed token that the engine is asked for."""
    path_branches: int | None = Field(default=None, ge=0)
    """Places on one path that may branch, at most."""
    budget_tokens: PositiveInt | None = None
    """Tokens of one task's trajectories, shared ones once; when they are used up nothing more
    begins, and the group may be smaller."""
    trees: PositiveInt = 2
    """In `tree_grpo`: trees per task, each `1 + rounds * width` trajectories."""
    rounds: int = Field(default=1, ge=0)
    """In `tree_grpo`: times that each tree is expanded."""
    width: PositiveInt = 2
    """In `tree_grpo`: new chains per round; in `fan_out`: trajectories that a turn makes of one."""
    turns: tuple[PositiveInt, ...] = ()
    """In `fan_out`: the turns at which every trajectory branches."""
