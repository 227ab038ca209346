"""What tests of credit in trees share: trees and groups from nested lists of rewards."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from agentrl.config.section import ConfigSection
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of
from agentrl.learn.tree_shape import SharedPrefixes
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree
from tests.support.learning import advantage_of

Shape = list[Any]
"""Below a node: a reward ends a trajectory there, a list is a branch point, None is a failure."""

rewards = st.integers(-2, 2).map(float)
shapes = st.lists(
    st.recursive(rewards, lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=6),
    min_size=1,
    max_size=4,
)


def tree_of(shape: Shape, *, name: str = "t", tokens: int | None = None) -> Tree:
    """Return a tree with a prompt at its root. Every node below samples `tokens` tokens, by default
    one to three, and has a tool's answer after it where something follows."""
    tree = Tree(Task(prompt="q", id=name))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))

    def grow(below: Any, at: int, turn: int) -> None:
        n = tokens or 1 + len(tree.nodes) % 3
        at = tree.add(
            Node(
                parent=at,
                source="sampled",
                token_ids=tuple(2 + (len(tree.nodes) + i) % 9 for i in range(n)),
                turn=turn,
                logprobs=(-1.0,) * n,
                versions=(0,) * n,
            )
        )
        if isinstance(below, list):
            at = tree.add(Node(parent=at, source="tool", token_ids=(4,), turn=turn))
            for each in below:  # pyright: ignore[reportUnknownVariableType]
                grow(each, at, turn + 1)
        else:
            outcome = Failed("env", "broke") if below is None else Finished(below)
            tree.end(Leaf(node=at, outcome=outcome, sample=len(tree.leaves)))

    for below in shape:
        grow(below, prompt, 0)
    return tree


def group_of(shape: Shape, *, tokens: int | None = None) -> TrainingGroup:
    """Return the group of such a tree."""
    (group,) = groups_of([tree_of(shape, tokens=tokens)])
    return group


def rename_nodes(sample: TrainingSample, factor: int, offset: int) -> TrainingSample:
    """Return the sample with other ids for its nodes."""
    spans = sample.spans.copy()
    spans["node"] = spans["node"] * factor + offset
    return replace(sample, spans=spans)


def with_entropies(group: TrainingGroup) -> TrainingGroup:
    """Return the group with an entropy per token, the same for a token wherever it is shared."""
    samples = [
        replace(s, entropies=0.1 * (s.nodes % 7) + 0.01 * np.arange(len(s.nodes)))
        for s in group.samples
    ]
    return replace(group, samples=tuple(samples))


def ends(credit: TokenAdvantages) -> list[float]:
    """Return what the last token of every sample got."""
    return [float(tokens[-1]) for tokens in credit]


def per_segment(group: TrainingGroup, section: ConfigSection) -> list[float]:
    """Return what the tokens of each segment that has tokens got, in the order of the shape."""
    shape, found = SharedPrefixes.from_group(group), dict[int, float]()
    for place, tokens in zip(shape.places, advantage_of(section)([group]), strict=True):
        for segment, value in zip(place.tolist(), tokens.tolist(), strict=True):
            assert found.setdefault(segment, value) == value
    return [found[segment] for segment in sorted(found)]


def sums(group: TrainingGroup, credit: TokenAdvantages) -> dict[tuple[int, int], float]:
    """Return the credit of every sampled token, added up over the samples that hold it."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for sample, tokens in zip(group.samples, credit, strict=True):
        for at in np.flatnonzero(sample.mask).tolist():
            found[int(sample.nodes[at]), at] += float(tokens[at])
    return dict(found)
