"""A group's tree when it is over, and what a step's trees add up to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.rollout.branching.aepo import ObservedSignals
from agentrl.rollout.branching.decision import BranchDecision
from agentrl.rollout.branching.forks import ForkAttempt
from agentrl.trajectory import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingSummary:
    """One group's tree, when it is over, and why it has its shape."""

    group: int
    tree: Tree
    decisions: tuple[BranchDecision, ...]
    copies: tuple[ForkAttempt, ...]
    observed: ObservedSignals | None
    """Observations that the group adds to the topology's `prior`; None for one without."""


def branching_figures(shaped: Sequence[BranchingSummary]) -> dict[str, float]:
    """Return branches and failed copies per tree, seconds per copy, and the share of tokens that
    several trajectories share."""
    if not shaped:
        return {}
    copies = [copied for one in shaped for copied in one.copies]
    branches = sum(len(decision.children) for one in shaped for decision in one.decisions)
    failed = Counter(copied.reason for copied in copies if copied.reason)
    figures: dict[str, float] = {
        "branching/branches_mean": branches / len(shaped),
        "branching/copies": len(copies),
        **{f"branching/failed_copies/{reason}": n for reason, n in sorted(failed.items())},
    }
    if copies:
        seconds = [copied.seconds for copied in copies]
        figures["branching/copy_seconds_mean"] = sum(seconds) / len(seconds)
        figures["branching/copy_seconds_max"] = max(seconds)
    played = sum(_count_played_tokens(one.tree) for one in shaped)
    stored = sum(_count_stored_tokens(one.tree) for one in shaped)
    if played:
        figures["branching/shared_tokens"] = 1 - stored / played
    return figures


def _count_played_tokens(tree: Tree) -> int:
    ends = [leaf.node for leaf in tree.leaves if leaf.node is not None]
    return sum(len(part.token_ids) for end in ends for part in tree.path(end))


def _count_stored_tokens(tree: Tree) -> int:
    nodes = tree.nodes
    used = {i for leaf in tree.leaves if leaf.node is not None for i in tree.path_ids(leaf.node)}
    return sum(len(nodes[i].token_ids) for i in used)
