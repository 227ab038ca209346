"""Similarity of trajectories: a policy that says the same to every task has learnt a template.

Measured on runs of sampled tokens, without looking at what they mean. Two trajectories share as
much as their runs of four tokens do (Jaccard's measure).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from agentrl.trajectory import Tree

RUN = 4

_Runs = frozenset[tuple[int, ...]]


def likeness_figures(trees: Sequence[Tree]) -> dict[str, float]:
    """Return the similarity of trajectories of one task, and of different tasks, from 0 to 1.

    Each is compared with the next of its tree, and with the one at its place in the next tree of
    another task: as many pairs as trajectories. Trajectories of fewer tokens than a run are left
    out; a figure without a pair is not there.
    """
    played = [(tree.task.fingerprint, _runs(tree)) for tree in trees]
    same = [pair for _, runs in played for pair in pairwise(runs)]
    other = [
        (one, there[place % len(there)])
        for (task, here), (next_task, there) in zip(played, (*played[1:], *played[:1]), strict=True)
        if task != next_task and there
        for place, one in enumerate(here)
    ]
    pairs_by_name = {"likeness/same_task": same, "likeness/other_task": other}
    return {name: _mean(pairs) for name, pairs in pairs_by_name.items() if pairs}


def _runs(tree: Tree) -> list[_Runs]:
    """Return the runs of each trajectory that has any, in sample order."""
    run_sets: list[_Runs] = []
    for leaf in sorted(tree.leaves, key=lambda leaf: leaf.sample):
        path = () if leaf.node is None else tree.path(leaf.node)
        tokens = [token for n in path if n.source == "sampled" for token in n.token_ids]
        if len(tokens) >= RUN:
            runs = (tuple(tokens[at : at + RUN]) for at in range(len(tokens) - RUN + 1))
            run_sets.append(frozenset(runs))
    return run_sets


def _mean(pairs: Iterable[tuple[_Runs, _Runs]]) -> float:
    return fmean(len(one & other) / len(one | other) for one, other in pairs)
