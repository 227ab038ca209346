"""What a step's trajectories cost and how they ended, as numbers for the metrics."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from agentrl.trajectory import Tree, outcome_name


def rollout_figures(trees: Sequence[Tree]) -> dict[str, float]:
    """Return shares of each outcome, tool calls and seconds per trajectory, failures among them."""
    leaves = [leaf for tree in trees for leaf in tree.leaves]
    if not leaves:
        return {}
    ends = Counter(outcome_name(leaf.outcome) for leaf in leaves)
    shares = {f"outcome/{name}": count / len(leaves) for name, count in sorted(ends.items())}
    return shares | {
        "rollout/tool_calls_mean": fmean(leaf.tool_calls for leaf in leaves),
        "rollout/seconds_mean": fmean(leaf.seconds for leaf in leaves),
        "rollout/seconds_max": max(leaf.seconds for leaf in leaves),
    }
