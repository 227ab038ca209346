"""Trajectories put into a tree, and taken out of one: always into a copy."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from agentrl.trajectory import Leaf, Node, Tree, reward_of

AGE = "borrowed_age"
"""The reward component that marks a lent trajectory: by how many versions it is older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCopy:
    """One trajectory out of its tree: its nodes from the root on, and its end."""

    nodes: tuple[Node, ...]
    leaf: Leaf


def copy_branch(tree: Tree, leaf: Leaf) -> TrajectoryCopy:
    """Return the trajectory that ends in `leaf`; tokens are shared, not copied."""
    return TrajectoryCopy(nodes=() if leaf.node is None else tree.path(leaf.node), leaf=leaf)


def replace_branch(tree: Tree, branch: TrajectoryCopy, *, sample: int, age: int) -> Tree:
    """Return a tree in which `branch` has taken the place of the trajectory `sample`.

    The tree itself is append-only and stays as it is; node ids of the copy are the same. The new
    leaf carries `AGE` among its components; its tokens keep the versions that sampled them.
    """
    copy = _copy(tree, (leaf for leaf in tree.leaves if leaf.sample != sample))
    at: int | None = None
    for node in branch.nodes:
        at = copy.share(replace(node, parent=at))
    components = {**branch.leaf.components, AGE: float(age)}
    copy.end(replace(branch.leaf, node=at, sample=sample, components=components, root=None))
    return copy


def keep_members(tree: Tree, samples: Collection[int]) -> Tree:
    """Return a tree with these trajectories and those that failed; node ids are the same."""
    leaves = [
        leaf for leaf in tree.leaves if leaf.sample in samples or reward_of(leaf.outcome) is None
    ]
    return tree if len(leaves) == len(tree.leaves) else _copy(tree, leaves)


def _copy(tree: Tree, leaves: Iterable[Leaf]) -> Tree:
    copy = Tree(tree.task)
    for node in tree.nodes:
        copy.add(node)
    for leaf in leaves:
        copy.end(leaf)
    return copy
