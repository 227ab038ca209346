"""The decisions of a run's topology, by group, as the page shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.branching.decision import BranchDecision, explain
from agentrl.rollout.branching.log import LoggedDecision, read_log


def read_decisions(folder: Path) -> Mapping[int, list[dict[str, Any]]]:
    """Return the decisions of every group, in order; none without a log that can be read."""
    decisions: dict[int, list[dict[str, Any]]] = {}
    try:
        logged = [*read_log(folder)]
    except ConfigError:
        return decisions
    for one in logged:
        if isinstance(one, LoggedDecision):
            decisions.setdefault(one.group, []).append(render_decision(one.decision))
    return decisions


def render_decision(decision: BranchDecision) -> dict[str, Any]:
    """Return a decision with its numbers, and in words."""
    boundary, probe, chance = decision.boundary, decision.boundary.probe, decision.chance
    return {
        "sample": decision.sample,
        "turn": boundary.turn,
        "at": boundary.context_tokens,
        "reason": decision.reason,
        "said": explain(decision),
        "topology": decision.topology,
        "signal": None if probe is None else probe.value,
        "bounds": None if probe is None else [probe.lower, probe.upper],
        "rise": decision.rise,
        "streak": decision.streak,
        "chance": None if chance is None else chance.value,
        "score": None if chance is None else chance.score,
        "draws": list(decision.draws),
        "open": decision.open,
        "children": [child.sample for child in decision.children],
    }
