"""Segments, trees and depths of a group. Mutants seen caught: depth not counted; sum for mean;
trees by the prompt; samples without tokens in one tree; children before parents; no root where
prompts differ; what ended weighed as an edge, or forgotten; a root that is not asked for.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from agentrl.learn.advantages.branch_grpo import probability_values
from agentrl.learn.sample import groups_of, spans_of
from agentrl.learn.tree_shape import SharedPrefixes
from agentrl.trajectory import Leaf, Truncated
from tests.support.tree_groups import Shape, group_of, rename_nodes, shapes, tree_of


def test_segments_lie_between_branch_points() -> None:
    group = group_of([[1.0, [0.0, [[0.0]]]], 1.0], tokens=1)
    shape = SharedPrefixes.from_group(group)
    assert [(s.samples, s.parent, s.depth) for s in shape.segments] == [
        ((0, 1, 2, 3), None, 0),
        ((0, 1, 2), 0, 1),
        ((1, 2), 1, 2),
        ((0,), 1, 2),
        ((1,), 2, 3),
        ((2,), 2, 3),
        ((3,), 0, 1),
    ]
    # Two tokens of prompt, then a sampled one and a tool's per turn; the last three turns of
    # sample 2 are one segment, for nothing branches there.
    assert shape.places[2].tolist() == [0, 0, 1, 1, 2, 2, 5, 5, 5, 5, 5]
    assert shape.places[3].tolist() == [0, 0, 6]


def test_what_was_sampled_before_the_first_branch_point_belongs_to_the_root() -> None:
    shape = SharedPrefixes.from_group(group_of([[1.0, 0.0]], tokens=2))
    assert shape.places[0].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert [segment.depth for segment in shape.segments] == [0, 1, 1]


def test_one_trajectory_is_its_own_root() -> None:
    shape = SharedPrefixes.from_group(group_of([[[1.0]]]))
    assert len(shape.segments) == 1
    assert shape.trees == (0,)


def test_a_failed_branch_makes_no_branch_point() -> None:
    whole = SharedPrefixes.from_group(group_of([[[1.0], None], 0.0], tokens=1))
    assert [(s.samples, s.depth) for s in whole.segments] == [((0, 1), 0), ((0,), 1), ((1,), 1)]


def test_trees_share_more_than_the_prompt() -> None:
    assert SharedPrefixes.from_group(group_of([[1.0, 0.0], 1.0, [[0.0, 1.0], 0.0]])).trees == (
        0,
        0,
        1,
        2,
        2,
        2,
    )
    assert SharedPrefixes.from_group(group_of([[1.0, 0.0]])).trees == (0, 0)
    group = group_of([1.0, 0.0, 0.0])
    silent = [
        replace(s, spans=spans_of(s.sampled & False, nodes=s.nodes), mask=s.mask & False)
        for s in group.samples[:2]
    ]
    assert SharedPrefixes.from_group(replace(group, samples=(*silent, group.samples[2]))).trees == (
        0,
        1,
        2,
    )


def test_trees_of_one_root_are_one_tree_even_where_only_the_prompt_is_shared() -> None:
    group = group_of([1.0, [0.0, 1.0], 1.0, 0.0])
    roots = (0, 1, None, 0, 1)
    known = [replace(s, root=root) for s, root in zip(group.samples, roots, strict=True)]
    # Sample 2 says nothing, and shares what sample 1 sampled; sample 4 grew from the same root.
    assert SharedPrefixes.from_group(replace(group, samples=tuple(known))).trees == (0, 1, 1, 0, 1)


def test_one_trajectory_may_end_where_another_goes_on() -> None:
    tree = tree_of([[1.0]])
    tree.end(Leaf(node=2, outcome=Truncated("tokens", 0.0), sample=1))
    (group,) = groups_of([tree])
    shape = SharedPrefixes.from_group(group)
    assert [(s.samples, s.parent) for s in shape.segments] == [((0, 1), None), ((0,), 0)]
    assert shape.means([1.0, 0.0]).tolist() == [0.5, 1.0]
    # What ends follows with a log-prob of 0: e^0 against e^-1, for the other's one token.
    values = probability_values(shape, group.rewards, [0.0, -1.0])
    assert values[0] == pytest.approx(math.exp(-1) / (1 + math.exp(-1)))


def test_prompts_of_their_own_meet_at_a_root_without_tokens() -> None:
    group = group_of([1.0, [1.0, 0.0]], tokens=1)
    apart = [rename_nodes(s, 1, 100 * (i > 0)) for i, s in enumerate(group.samples)]
    group = replace(group, samples=tuple(apart))
    shape = SharedPrefixes.from_group(group)
    assert [(s.samples, s.parent, s.depth) for s in shape.segments] == [
        ((0, 1, 2), None, 0),
        ((1, 2), 0, 1),
        ((0,), 0, 1),
        ((1,), 1, 2),
        ((2,), 1, 2),
    ]
    assert shape.places[0].tolist() == [2, 2, 2]
    assert shape.trees == (0, 1, 1)


@given(shapes)
def test_segments_are_a_tree_over_the_samples(below: Shape) -> None:
    group = group_of(below)
    shape = SharedPrefixes.from_group(group)
    for index, segment in enumerate(shape.segments):
        if segment.parent is None:
            assert index == 0
            assert segment.samples == tuple(range(len(group.samples)))
            continue
        parent = shape.segments[segment.parent]
        assert segment.parent < index
        assert set(segment.samples) < set(parent.samples)
        assert segment.depth == parent.depth + 1
    for one in range(len(group.samples)):
        for other in range(one):
            shared = {*group.samples[one].nodes.tolist()} & {*group.samples[other].nodes.tolist()}
            assert (shape.trees[one] == shape.trees[other]) == (len(shared) > 1)
