"""Selections that look at a row's group: MC-GRPO's pivot, and BranchGRPO's pruning.

Mutants seen caught: the upper median; all of the median's reward gone; one group for the whole
batch, or in the trainer; depths that slide on, or into the leaves; too few of a half; the best
leaf pruned; leaves in the order of the tree instead of by reward.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.config.learning.advantage import BranchGrpoAdvantage, McGrpoAdvantage
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.learning.selection import (
    BranchPruningSelection,
    OverlongSelection,
    PivotSelection,
)
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, groups_of
from agentrl.learn.selection import SelectionContext, branch_pruning, pivot
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.tree_shape import SharedPrefixes
from tests.support.learning import advantage_of, assert_close, gradients, model_of
from tests.support.tree_groups import Shape, rewards, shapes, tree_of

START = SelectionContext(step=0, steps=10, seed=0)


def rows_of(*given_shapes: Shape, tokens: int | None = 1) -> list[CreditedSample]:
    """Return the rows of a batch of trees, credited by BranchGRPO."""
    groups = groups_of([tree_of(shape, tokens=tokens) for shape in given_shapes])
    samples = [(sample, at) for at, group in enumerate(groups) for sample in group.samples]
    credit = advantage_of(BranchGrpoAdvantage())(groups)
    return [CreditedSample(s, a, at) for (s, at), a in zip(samples, credit, strict=True)]


def names(rows: Sequence[CreditedSample]) -> list[tuple[int, int]]:
    """Return the group and the sample of each row."""
    return [(row.group, row.sample.sample) for row in rows]


def trained_turns(rows: Sequence[CreditedSample]) -> dict[int, list[int]]:
    """Return by sample the turns that train."""
    return {
        row.sample.sample: sorted({*row.sample.turns[row.sample.mask].tolist()}) for row in rows
    }


# The pivot.


def test_the_pivot_of_the_specification() -> None:
    rows = rows_of([0.1, 0.4, 0.5, 0.7, 1.0])
    kept = pivot(rows, START)
    assert [row.sample.reward for row in kept] == [0.1, 0.4, 0.7, 1.0]
    assert all(row is rows[row.sample.sample] for row in kept)


def test_one_leaves_each_group_and_others_of_its_reward_stay() -> None:
    rows = rows_of([1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0], [2.0, 2.0, 2.0], [5.0])
    assert names(pivot(rows, START)) == [
        *((0, sample) for sample in (0, 2, 3, 4)),
        (1, 1),
        (2, 1),
        (2, 2),
    ]


def test_two_groups_of_one_task_have_a_pivot_each() -> None:
    rows = rows_of([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])
    assert names(pivot(rows, START)) == [(0, 0), (0, 2), (1, 0), (1, 2)]


@given(st.lists(rewards, min_size=1, max_size=7))
def test_the_pivot_has_no_credit(group_rewards: list[float]) -> None:
    rows = rows_of(list(group_rewards))
    group = groups_of([tree_of(list(group_rewards), tokens=1)])
    credit = advantage_of(McGrpoAdvantage())(group)
    kept = {row.sample.sample for row in pivot(rows, START)}
    if len(group_rewards) == 1:
        assert kept == {0}, "nothing is left: the step is skipped"
        return
    (gone,) = {*range(len(group_rewards))} - kept
    assert not credit[gone].any()


def test_the_loss_is_divided_by_what_is_left() -> None:
    """A token mean over 4 of 5 rows of one length: 5/4 of the gradient."""
    model = model_of()
    trees = [tree_of([0.1, 0.4, 0.5, 0.7, 1.0], tokens=3)]
    groups = groups_of(trees)
    credit = advantage_of(McGrpoAdvantage())(groups)
    rows = [CreditedSample(s, a) for s, a in zip(groups[0].samples, credit, strict=True)]
    config = LearnSection(advantage=McGrpoAdvantage(), correction=NoCorrection())
    whole = gradients(model, rows, config)
    without = gradients(model, pivot(rows, START), config)
    assert_close(without, whole * 1.25)


def test_a_trainer_leaves_the_pivot_of_each_group_out() -> None:
    config = LearnSection(advantage=McGrpoAdvantage(), selection=(PivotSelection(),))
    trainer = PolicyTrainer(model_of(), config, seed=3)
    trees = [tree_of([0.0, 1.0, 2.0], tokens=2), tree_of([2.0, 0.0, 1.0], tokens=2)]
    metrics = trainer.step(trees)
    assert metrics["tokens/trained"] == 8
    assert metrics["selection/trajectories"] == pytest.approx(2 / 3)
    assert metrics["reward/mean"] == 1
    assert trainer.step([tree_of([1.0])])["optimizer/skipped"] == 1


# Pruning.

TWO_BY_TWO: Shape = [[1.0, 0.0], [0.25, 0.5]]


def test_width_leaves_half_of_the_leaves_of_the_specification() -> None:
    rows = rows_of(TWO_BY_TWO)
    half = branch_pruning(rows, START, width="half")
    assert trained_turns(half) == {0: [0, 1], 1: [0], 2: [0], 3: [0, 1]}
    extremes = branch_pruning(rows, START, width="extremes")
    assert trained_turns(extremes) == {0: [0, 1], 1: [0, 1], 2: [0], 3: [0]}
    for kept in (half, extremes):
        assert all(row.advantages is rows[row.sample.sample].advantages for row in kept)


def test_leaves_are_compared_after_the_same_branch_point() -> None:
    """Of three leaves two stay; a leaf beside an inner segment has nobody to be compared with."""
    rows = rows_of([[0.0, 1.0, 2.0], -1.0])
    assert trained_turns(branch_pruning(rows, START)) == {0: [0], 1: [0, 1], 2: [0, 1], 3: [0]}


def test_depths_slide_to_the_last_branch_point() -> None:
    rows = rows_of([[[1.0, 0.0], 0.0], 0.0])

    def turns(step: int, *depths: int) -> dict[int, list[int]]:
        moment = SelectionContext(step=step, steps=0, seed=0)
        return trained_turns(
            branch_pruning(rows, moment, width="all", depths=depths, slide_steps=10)
        )

    everything = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1], 3: [0]}
    # Before the first branch point there is only the prompt.
    assert turns(9, 0) == everything
    assert turns(10, 0) == {0: [1, 2], 1: [1, 2], 2: [1]}
    assert turns(20, 0) == turns(999, 0) == {0: [0, 2], 1: [0, 2], 2: [0], 3: [0]}
    assert turns(0, 1, 2) == turns(999, 0, 1) == {0: [2], 1: [2]}
    assert turns(0, 3) == turns(0, 7) == everything, "leaves always train"


def test_equal_rewards_are_ordered_by_the_seed() -> None:
    rows = rows_of([0.0, 0.0, 0.0, 0.0])
    found = [
        names(branch_pruning(rows, SelectionContext(step=0, steps=0, seed=seed % 20)))
        for seed in range(40)
    ]
    assert len({tuple(each) for each in found}) > 3
    assert found[:20] == found[20:]
    assert all(len(each) == 2 for each in found)


@given(shapes, shapes, st.sampled_from(["half", "extremes"]))
def test_as_many_leaves_are_left_as_asked_for(
    below: Shape, other: Shape, width: Literal["half", "extremes"]
) -> None:
    rows = rows_of(below, other, tokens=None)
    kept = {(row.group, row.sample.sample): row for row in branch_pruning(rows, START, width=width)}
    for number in {row.group for row in rows}:
        own = [row for row in rows if row.group == number]
        group = TrainingGroup("t", tuple(row.sample for row in own))
        shape = SharedPrefixes.from_group(group)
        parents = {segment.parent for segment in shape.segments}
        leaves = set(range(len(shape.segments))) - parents
        trained = {
            int(place)
            for row, places in zip(own, shape.places, strict=True)
            if (mine := kept.get((number, row.sample.sample)))
            for place in places[mine.sample.mask]
        }
        inner = {
            int(p) for r, places in zip(own, shape.places, strict=True) for p in places[r.mask]
        }
        assert inner - leaves == trained - leaves, "what leaves share trains as before"
        if width == "extremes":
            assert len(trained & leaves) == min(len(leaves), 2)
        else:
            assert len(leaves) / 2 <= len(trained & leaves) <= len(leaves)
        best = max(leaves, key=lambda at: shape.means(group.rewards)[at])
        worth = shape.means(group.rewards)
        assert worth[best] == max(worth[at] for at in trained & leaves)


def test_a_trainer_prunes_within_the_group() -> None:
    config = LearnSection(
        advantage=BranchGrpoAdvantage(),
        selection=(BranchPruningSelection(width="extremes", depths=(1,)),),
    )
    metrics = PolicyTrainer(model_of(), config, seed=3).step(
        [tree_of(TWO_BY_TWO, tokens=2), tree_of(TWO_BY_TWO, name="o", tokens=2)]
    )
    assert metrics["tokens/trained"] == 8
    assert metrics["selection/trajectories"] == 0.5


def test_a_batch_of_which_nothing_is_left_is_skipped() -> None:
    rows = rows_of([0.0, 1.0])
    silent = [
        replace(row, sample=replace(row.sample, mask=np.zeros_like(row.sample.mask)))
        for row in rows
    ]
    for select in (pivot, branch_pruning):
        found = select(silent, START)
        assert len(found) == 2
        assert all(row.is_idle for row in found)


# What a config may say.


@pytest.mark.parametrize(
    ("learn", "says"),
    [
        ("selection: [{name: pivot}]", "learn.selection has pivot, the baseline of mc_grpo, but"),
        (
            "selection: [{name: overlong}, {name: pivot}], advantage: {name: mc_grpo}",
            "pivot after overlong, which may remove trajectories, but",
        ),
        ("selection: [{name: branch_pruning, width: all}]", "which prunes nothing; set width to"),
        ("selection: [{name: branch_pruning, depths: [-1]}]", "learn.selection.0"),
    ],
)
def test_a_selection_that_cannot_work_is_refused(tmp_path: Path, learn: str, says: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"env: {{id: demo/Multiply-v0}}\nlearn: {{{learn}}}\n")
    with pytest.raises(ConfigError) as refusal:
        load_config(file)
    assert says in str(refusal.value)


def test_a_pivot_goes_with_its_advantage(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("env: {id: demo/Multiply-v0}\n")
    changes = {
        "learn.selection": [{"name": "pivot"}, {"name": "overlong"}],
        "learn.advantage": {"name": "mc_grpo"},
    }
    assert load_config(file, changes).learn.selection == (PivotSelection(), OverlongSelection())
