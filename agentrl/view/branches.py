"""The decisions of a run's topology, by group, as the page shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.branching.decision import BranchDecision, explain
from agentrl.rollout.branching.log import FILE, LoggedDecision, read_log


def read_decisions(folder: Path) -> Mapping[int, list[dict[str, Any]]]:
    """Return the decisions of every group, in order; nothing for a run that does not branch."""
    decisions: dict[int, list[dict[str, Any]]] = {}
    if not (folder / FILE).exists():
        return decisions
    for one in read_log(folder):
        if isinstance(one, LoggedDecision):
            decisions.setdefault(one.group, []).append(render_decision(one.decision))
    return decisions


def try_decisions(folder: Path) -> tuple[Mapping[int, list[dict[str, Any]]], str]:
    """Return the decisions, or none and why there are none."""
    try:
        return read_decisions(folder), ""
    except ConfigError as error:
        return {}, str(error)


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
