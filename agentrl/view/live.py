"""State of a run as JSON, for the served page. A pure function of `RunStatus`."""

import math
from typing import Any

from agentrl.view.run_status import LiveRollout, RunStatus

SHOWN_FLYING = 20
STUCK_S = 60.0
"""Without a record for so long, a trajectory is called stuck."""


def build_live_state(standing: RunStatus) -> dict[str, Any]:
    """Return the page's values for a run that may go on; times are seconds, shares of 1."""
    figures, shares = standing.figures, standing.shares
    return {
        "phase": standing.phase,
        "step": standing.step,
        "steps": standing.steps,
        "leftS": standing.left_s,
        "stepS": standing.step_s,
        "tokensPerS": figures.get("tokens_per_s"),
        "reward": _reward(standing),
        "learning": standing.learning,
        "shares": None
        if shares is None
        else {"policy": shares.policy, "world": shares.world, "other": shares.other},
        "age": {"mean": figures["age/mean"], "max": figures.get("age/max")}
        if "age/mean" in figures
        else None,
        "failures": dict(standing.failures),
        "ended": standing.ended,
        "groups": dict(sorted(standing.groups.items())),
        "flying": len(standing.flying),
        "stuck": sum(map(is_stuck, standing.flying)),
        "faults": list(standing.faults),
        "slowest": [_flying(one) for one in standing.flying[:SHOWN_FLYING]],
    }


def is_stuck(one: LiveRollout) -> bool:
    """Return whether a trajectory has not moved for too long."""
    return one.quiet_s is not None and one.quiet_s >= STUCK_S


def _reward(standing: RunStatus) -> dict[str, Any] | None:
    if not standing.rewards:
        return None
    step, last = standing.rewards[-1]
    is_finite = math.isfinite(last.low) and math.isfinite(last.high)
    low, high = (last.low, last.high) if is_finite else (None, None)
    return {"step": step, "mean": last.mean, "groups": last.tasks, "low": low, "high": high}


def _flying(one: LiveRollout) -> dict[str, Any]:
    return {
        "group": one.group,
        "sample": one.sample,
        "task": one.task,
        "turns": one.turns,
        "usedS": one.used_s,
        "quietS": one.quiet_s,
        "isStuck": is_stuck(one),
    }
