"""Metrics of a step's trajectories: their cost and their outcomes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from agentrl.trajectory import Node, Tree, outcome_name, reward_of


def rollout_figures(trees: Sequence[Tree]) -> dict[str, float]:
    """Return shares of each outcome, tool calls and seconds per trajectory, failures among them.

    And what they cost together, where what several share counts once: sampled tokens, and tool
    calls that were answered. And the mean of each component that environments tell of, over the
    trajectories that have it.
    """
    leaves = [leaf for tree in trees for leaf in tree.leaves]
    if not leaves:
        return {}
    ends = Counter(outcome_name(leaf.outcome) for leaf in leaves)
    shares = {f"outcome/{name}": count / len(leaves) for name, count in sorted(ends.items())}
    means = component_means(
        leaf.components for leaf in leaves if reward_of(leaf.outcome) is not None
    )
    shares |= {f"component/{name}": mean for name, mean in means.items()}
    return shares | {
        "rollout/sampled_tokens": sum(map(_count_sampled_tokens, trees)),
        "rollout/tool_calls": sum(map(_count_tool_calls, trees)),
        "rollout/tool_calls_mean": fmean(leaf.tool_calls for leaf in leaves),
        "rollout/seconds_mean": fmean(leaf.seconds for leaf in leaves),
        "rollout/seconds_max": max(leaf.seconds for leaf in leaves),
    }


def _count_sampled_tokens(tree: Tree) -> int:
    return sum(len(node.token_ids) for node in tree.nodes if node.source == "sampled")


def _count_tool_calls(tree: Tree) -> int:
    """Return the calls that a reply followed."""
    return sum(
        node.tool_status.count(",") + 1
        for node in tree.nodes
        if node.tool_status and not _goes_on(tree, node)
    )


def _goes_on(tree: Tree, node: Node) -> bool:
    """Return whether a reply of several messages has said its status before `node`."""
    at = node.parent
    while at is not None and (before := tree.node(at)).turn == node.turn:
        if before.tool_status:
            return True
        at = before.parent
    return False


def component_means(told: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every component by name, over those that have it."""
    values_by_name: dict[str, list[float]] = {}
    for components in told:
        for name, value in components.items():
            values_by_name.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in sorted(values_by_name.items())}
