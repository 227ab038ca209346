"""Branch decision at one boundary: the values that determined it, and its description."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.rollout.branching.entropy import EntropyProbe
from agentrl.rollout.branching.rule import BranchChance

Path = tuple[int, ...]
"""A trajectory by how it came to be: its root's number, then a turn and an ordinal per branch."""

Reason = Literal[
    "branched", "draw", "threshold", "budget", "path", "opening", "alone", "unmeasured", "fixed"
]
"""Reason for the decision: the draw or a fixed threshold decided; the budget, or the path's, is
used up; the turn is the first; pre-monitoring runs a trajectory alone; the engine reported no
log-probs; the topology does not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """A place that trajectories begin from: `path`'s context as turn `turn` begins. Turn 0 is the
    prompt."""

    path: Path
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollout:
    """A trajectory to begin. It shares everything up to its origin with the origin's path."""

    path: Path
    sample: int
    """Its index among the task's leaves; that of a failure which it replaces may come again."""
    seed: int
    """Seed of its sampling noise, a function of run seed, task and path."""
    origin: BranchPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPointReached:
    """A trajectory is about to take a turn: its context ends where the policy speaks."""

    path: Path
    turn: int
    """Turns are counted from 0; every later one follows a tool result."""
    node: int | None
    """The tree's node whose children the branches become; the probe's tokens come after it."""
    context_tokens: int
    tokens: int
    """Added so far by this trajectory itself, shared ones not among them."""
    probe: EntropyProbe | None = None
    """Over the first tokens of the turn; they are this trajectory's own and nobody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDecision:
    """One boundary's decision: every input and the outcome."""

    task_id: str
    topology: str
    rule: Mapping[str, Any]
    sample: int
    boundary: BranchPointReached
    reason: Reason
    first: float | None = None
    rise: float | None = None
    """The signal that counts here, less `first`."""
    streak: int = 0
    """Boundaries in a row that branched on this path, before this one."""
    chance: BranchChance | None = None
    draws: tuple[float, ...] = ()
    """One per candidate; a branch opens when its draw is below the chance."""
    open: int = 0
    """Trajectories that the budget let branch here, before this decision."""
    children: tuple[PlannedRollout, ...] = ()
    keep: bool = False
    """The topology may yet begin trajectories here: hold what that needs."""


def explain(decision: BranchDecision) -> str:
    """Return in one sentence what happened at a boundary, and why."""
    where = f"trajectory {format_path(decision.boundary.path)}, turn {decision.boundary.turn}"
    parts = [part for part in (_signal(decision), _chance(decision), _draws(decision)) if part]
    details = f" ({'; '.join(parts)})" if parts else ""
    return f"{where}: {_outcome(decision)}{details}"


def format_path(path: Path) -> str:
    """Return a path as people write it: `2` is a root, `2/t3.0` its first branch at turn 3."""
    pairs = zip(path[1::2], path[2::2], strict=True)
    return "/".join([str(path[0]), *(f"t{turn}.{ordinal}" for turn, ordinal in pairs)])


def _outcome(decision: BranchDecision) -> str:
    match decision.reason:
        case "branched":
            names = ", ".join(format_path(child.path) for child in decision.children)
            return f"branched into {names}"
        case "opening":
            return "began"
        case "fixed" if decision.keep:
            return "kept for a later branch"
        case reason:
            return f"did not branch: {_OBSTACLES[reason]}"


_OBSTACLES: Mapping[Reason, str] = {
    "draw": "the random draw was not below the probability",
    "threshold": "the score is not above the threshold",
    "budget": "the budget is spent",
    "path": "the path has reached its maximum number of branches",
    "alone": "pre-monitoring runs the first trajectory alone",
    "unmeasured": "the engine reported no log-probs",
    "fixed": "no branch is due",
}


def _signal(decision: BranchDecision) -> str:
    probe = decision.boundary.probe
    if probe is None:
        return ""
    between = f"{probe.lower:.2f} to {probe.upper:.2f} nats over {probe.tokens} tokens"
    if decision.rise is None or decision.first is None:
        return f"signal {probe.value:.3f}, {between}"
    return (
        f"signal {probe.value:.3f}, {between}, {decision.rise:+.3f} relative to "
        f"{decision.first:.3f} at the start"
    )


def _chance(decision: BranchDecision) -> str:
    chance = decision.chance
    if chance is None:
        return ""
    penalty = f", penalty factor {chance.factor:.2f} after {decision.streak} consecutive branches"
    penalty = penalty if decision.streak else ""
    if chance.score is None:
        return f"chance {chance.value:.3f}{penalty}"
    return f"score {chance.score:.3f}, threshold {chance.threshold:g}{penalty}"


def _draws(decision: BranchDecision) -> str:
    if not decision.draws or (decision.chance and decision.chance.score is not None):
        return ""
    return "draw " + ", ".join(f"{draw:.3f}" for draw in decision.draws)
