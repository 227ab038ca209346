"""Credit in trees, on worked examples and on random trees. Mutants seen caught:

- shape: nodes by name and not by place; for the rest see test_learn_tree_shape.py
- arpo: hard is soft; another factor on shared tokens
- aepo: biased deviation; no clamp at 0; equal entropies through the formula; sign of z; entropies
  off the mask; factors of another sample; hard credit ignored
- tree_grpo: intra left out; tree_2norm of rewards; tree_inner of scores; sign of intra; variant
  ignored
- tree_rl: mean for leave-one-out; equal rewards through the formula; sqrt and uniform swapped;
  weights inverted; sign of centring and of the gain; untrained tokens centred; the global term
  always; weights twice or never in `weighted: value`; every trajectory `truncated`; singleton
  swapped
- branch_grpo: biased deviation; equal values through the formula; epsilon dropped; clip on one side
  or none; temperature inverted or ignored; mean for sum of log-probs; log-probs of tokens nobody
  sampled, or that are no number; weighting ignored; needs inverted
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.config.learning.advantage import (
    AepoAdvantage,
    ArpoAdvantage,
    BranchGrpoAdvantage,
    GrpoAdvantage,
    TreeGrpoAdvantage,
    TreeRlAdvantage,
)
from agentrl.config.learning.loss import PpoClipLoss
from agentrl.config.section import ConfigSection
from agentrl.learn import advantages
from agentrl.learn.advantages.aepo import entropy_factors
from agentrl.learn.advantages.branch_grpo import depth_scores, probability_values
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.advantages.tree_grpo import tree_grpo
from agentrl.learn.advantages.tree_rl import Weighting, leave_one_out
from agentrl.learn.method import find_needs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, groups_of
from agentrl.learn.tree_shape import SharedPrefixes
from tests.support.learning import advantage_of, assert_close, gradients, model_of
from tests.support.tree_groups import (
    Shape,
    ends,
    group_of,
    per_segment,
    rename_nodes,
    rewards,
    shapes,
    sums,
    tree_of,
    with_entropies,
)

# ARPO.


def test_arpo_soft_is_grpo_and_hard_shares_the_mean() -> None:
    group = group_of([[1.0, 0.0], 0.0], tokens=1)
    # Of (1, 0, 0): mean 1/3, std 0.57735.
    soft = advantage_of(ArpoAdvantage())([group])
    assert [x.tolist() for x in soft] == [
        x.tolist() for x in advantage_of(GrpoAdvantage())([group])
    ]
    assert soft[0].tolist() == pytest.approx([1.154699] * 5, abs=1e-6)
    hard = advantage_of(ArpoAdvantage(shared="hard"))([group])
    assert hard[0].tolist() == pytest.approx([0, 0, 0.288675, 0.288675, 1.154699], abs=1e-6)
    assert hard[1].tolist() == pytest.approx([0, 0, 0.288675, 0.288675, -0.577349], abs=1e-6)
    assert hard[2].tolist() == pytest.approx([0, 0, -0.577349], abs=1e-6)


@given(shapes)
def test_soft_and_hard_credit_of_a_token_add_up_to_the_same(below: Shape) -> None:
    group = group_of(below)
    soft = sums(group, advantage_of(ArpoAdvantage())([group]))
    hard = sums(group, advantage_of(ArpoAdvantage(shared="hard"))([group]))
    assert soft == pytest.approx(hard, abs=1e-9)


def test_soft_and_hard_have_one_gradient_where_nothing_clips() -> None:
    model = model_of()
    groups = groups_of([tree_of([[1.0, [0.0, 2.0]], 0.0]), tree_of([[1.0, 0.0]], name="o")])
    found = [gradient(model, groups, ArpoAdvantage(shared=kind)) for kind in ("soft", "hard")]
    assert_close(found[0][:-1], found[1][:-1])


def gradient(model: Any, groups: Sequence[TrainingGroup], section: ConfigSection) -> Any:
    """Return the gradient of plain policy gradient steps with this credit, and the loss."""
    samples = [sample for group in groups for sample in group.samples]
    credit = advantage_of(section)(groups)
    rows = [CreditedSample(s, a) for s, a in zip(samples, credit, strict=True)]
    config = LearnSection(loss=PpoClipLoss(clip_low=1.0, clip_high=1e6, dual_clip=None))
    return gradients(model, rows, config)


# AEPO.


def test_aepo_factors_golden() -> None:
    factors = entropy_factors(np.array([0.2, 0.4, 1.2]))
    assert factors.tolist() == pytest.approx([0.8488, 0.9244, 1.2268], abs=5e-5)
    assert entropy_factors(np.array([0.7])).tolist() == [1.0]
    assert entropy_factors(np.array([0.1] * 3)).tolist() == [1.0] * 3
    # z is -0.577, -0.577 and 1.155: a weight of 2 would take the first two below 0.
    assert entropy_factors(np.array([0.0, 0.0, 3.0]), weight=2.0).tolist() == pytest.approx(
        [0.0, 0.0, 1 + 2 * 1.154701], abs=1e-6
    )


def test_aepo_takes_the_entropies_of_the_whole_batch_and_of_its_mask_only() -> None:
    one, other = group_of([1.0, 0.0], tokens=1), group_of([0.0, 1.0], tokens=1)
    marks = iter([0.2, 0.4, 1.2, 1.2])
    groups = [
        replace(
            group,
            samples=tuple(
                replace(s, entropies=np.array([math.nan, math.nan, next(marks)]))
                for s in group.samples
            ),
        )
        for group in (one, other)
    ]
    # Of (.2, .4, 1.2, 1.2): mean .75, std .525991.
    factors = [1 + 0.2 * (x - 0.75) / 0.525991 for x in (0.2, 0.4, 1.2, 1.2)]
    wanted = [f * a for f, a in zip(factors, [1, -1, -1, 1], strict=True)]
    section = AepoAdvantage(normalise_std=False)
    found = advantage_of(section)(groups)
    assert ends(found) == pytest.approx([x / 2 for x in wanted], abs=1e-6)
    assert found[0][:2].tolist() == [0.5, 0.5]
    assert ends(advantage_of(AepoAdvantage(normalise_std=False, weight=0.0))(groups)) == [
        0.5,
        -0.5,
        -0.5,
        0.5,
    ]


def test_aepo_is_a_factor_on_soft_and_on_hard_credit() -> None:
    group = with_entropies(group_of([[1.0, 0.0], 0.0]))
    for kind in ("soft", "hard"):
        plain = advantage_of(ArpoAdvantage(shared=kind))([group])
        scaled = advantage_of(AepoAdvantage(shared=kind))([group])
        masks = [sample.mask for sample in group.samples]
        factors = [s[m] / p[m] for s, p, m in zip(scaled, plain, masks, strict=True)]
        seen = [s.entropies[s.mask] for s in group.samples if s.entropies is not None]
        assert np.concatenate(factors) == pytest.approx(entropy_factors(np.concatenate(seen)))


def test_aepo_names_the_sample_that_was_not_scored() -> None:
    with pytest.raises(ValueError, match=r"task 't' sample 0 has no entropies.*@needs"):
        advantage_of(AepoAdvantage())([group_of([1.0, 0.0])])


# Tree-GRPO.


def test_tree_grpo_golden() -> None:
    group = group_of([[1.0, 0.0], [1.0, 1.0]])
    found = ends(advantage_of(TreeGrpoAdvantage())([group]))
    assert found == pytest.approx([1.2071, -2.2071, 0.5, 0.5], abs=5e-5)
    inner = ends(advantage_of(TreeGrpoAdvantage(variant="tree_inner"))([group]))
    assert inner == pytest.approx([0.707106, -0.707106, 0, 0], abs=1e-6)
    twice = ends(advantage_of(TreeGrpoAdvantage(variant="tree_2norm"))([group]))
    assert twice == pytest.approx(inner, abs=1e-5)
    # An epsilon that can be seen: the inter-tree scores are smaller, so it weighs more there.
    assert twice[0] != inner[0]


def test_a_tree_of_one_trajectory_has_credit_within_its_task_only() -> None:
    rewards, trees = (1.0, 0.0, 3.0), [[0, 1], [2]]
    centred = partial(grpo, normalise_std=False)
    found = tree_grpo(rewards, trees, score=centred)
    assert found == pytest.approx([-1 / 3 + 0.5, -4 / 3 - 0.5, 5 / 3])
    raw = partial(centred, singleton="raw")
    assert tree_grpo(rewards, trees, score=raw)[2] == pytest.approx(5 / 3 + 3)
    assert tree_grpo(rewards, trees, score=raw, variant="tree_inner")[2] == 3.0
    assert tree_grpo(rewards, trees, score=raw, variant="tree_2norm")[2] == pytest.approx(5 / 3)


def test_the_scores_of_tree_grpo_take_the_knobs_of_the_section() -> None:
    group = group_of([[1.0, 0.0], 3.0])
    section = TreeGrpoAdvantage(normalise_std=False, singleton="raw", variant="tree_inner")
    assert ends(advantage_of(section)([group])) == [0.5, -0.5, 3.0]
    section = TreeGrpoAdvantage(epsilon=1.0, variant="tree_inner")
    assert ends(advantage_of(section)([group]))[0] == pytest.approx(0.292893, abs=1e-6)


# TreeRL.


def test_leave_one_out_golden() -> None:
    thirds = [2 / 3, -2 / 3, -2 / 3, 2 / 3]
    assert leave_one_out([1.0, 0.0, 0.0, 1.0]).tolist() == pytest.approx(thirds)
    assert leave_one_out([0.1] * 3).tolist() == [0.0] * 3


def test_tree_rl_golden() -> None:
    group = group_of([[1.0, 0.0], [0.0, 1.0]])
    plain = TreeRlAdvantage(global_term=False, weighting="none", centre="none")
    found = per_segment(group, plain)
    # The root, the two trees and their leaves: V is 0 in the first three.
    assert found == pytest.approx([0, 0, 0, 2 / 3, -2 / 3, -2 / 3, 2 / 3])
    both = TreeRlAdvantage(weighting="none", centre="none")
    assert per_segment(group, both)[3:] == pytest.approx([4 / 3, -4 / 3, -4 / 3, 4 / 3])


UNEVEN: Shape = [[1.0, 1.0, 0.0], 0.0]
"""Leave-one-out: 2/3, 2/3, -2/3 and -2/3, so V is 2/9 in the segment that three share."""


@pytest.mark.parametrize(
    ("weighting", "weighted", "expected"),
    [
        ("none", "reward", [4 / 9, 10 / 9]),
        ("sqrt", "reward", [4 / 9 / math.sqrt(3), 10 / 9]),
        ("uniform", "reward", [4 / 27, 10 / 9]),
        # The leaf's own value counts in full, its parent's by its own weight.
        ("sqrt", "value", [4 / 9 / math.sqrt(3), 4 / 3 - 2 / 9 / math.sqrt(3)]),
        ("uniform", "value", [4 / 27, 4 / 3 - 2 / 27]),
    ],
)
def test_tree_rl_weighs_repeated_segments(
    weighting: Weighting, weighted: Literal["reward", "value"], expected: list[float]
) -> None:
    section = TreeRlAdvantage(weighting=weighting, weighted=weighted, centre="none")
    assert per_segment(group_of(UNEVEN), section)[1:3] == pytest.approx(expected)


def test_tree_rl_centres_over_all_tokens_of_all_trajectories() -> None:
    group = group_of(UNEVEN, tokens=2)
    # Per copy: 3 x 2 tokens of 2/9, then 2 each of 2/3, 2/3, -2/3 and -2/3: a mean of 4/42.
    mean = (6 * 2 / 9) / 14
    section = TreeRlAdvantage(weighting="none")
    found = per_segment(group, section)
    assert found[1] == pytest.approx(4 / 9 - mean)
    assert found[2] == pytest.approx(10 / 9 - mean)
    section = TreeRlAdvantage(weighting="none", global_term=False)
    assert per_segment(group, section)[1] == pytest.approx(2 / 9)


def test_tree_rl_centres_over_tokens_that_train() -> None:
    group = group_of(UNEVEN, tokens=2)
    tail = group.samples[3]
    old = replace(group, samples=(*group.samples[:3], replace(tail, mask=tail.mask & False)))
    mean = (6 * 2 / 9 + 2 * 2 / 3) / 12
    found = per_segment(old, TreeRlAdvantage(weighting="none"))
    assert found[1] == pytest.approx(4 / 9 - mean)


def test_tree_rl_puts_a_number_in_the_place_of_what_a_limit_ended() -> None:
    group = group_of([1.0, 0.0, 0.0])
    cut = replace(group, samples=(*group.samples[:2], replace(group.samples[2], truncated=True)))
    section = TreeRlAdvantage(truncated=-1.0, global_term=False, weighting="none", centre="none")
    # The root is worth the mean of 1, -1/2 and -1.
    assert ends(advantage_of(section)([cut])) == pytest.approx(
        [1 + 1 / 6, -0.5 + 1 / 6, -1 + 1 / 6]
    )


def test_tree_rl_alone_is_dropped_or_keeps_its_raw_reward() -> None:
    group = group_of([0.7])
    assert ends(advantage_of(TreeRlAdvantage())([group])) == [0.0]
    assert ends(advantage_of(TreeRlAdvantage(singleton="raw"))([group])) == [0.7]


@given(shapes, st.sampled_from([("none", 1.0), ("sqrt", 0.5), ("uniform", 0.0)]))
def test_the_copies_of_a_segment_add_up_to_its_reward_times_their_weight(
    below: Shape, weight: tuple[Weighting, float]
) -> None:
    group = group_of(below)
    weighting, power = weight
    plain = advantage_of(TreeRlAdvantage(weighting="none"))([group])
    weighed = sums(group, advantage_of(TreeRlAdvantage(weighting=weighting))([group]))
    for sample, tokens in zip(group.samples, plain, strict=True):
        for at in np.flatnonzero(sample.mask).tolist():
            node = int(sample.nodes[at])
            holders = sum(node in other.nodes for other in group.samples)
            assert weighed[node, at] == pytest.approx(holders**power * tokens[at], abs=1e-9)


# BranchGRPO.


def test_branch_grpo_golden() -> None:
    group = group_of([[1.0, 0.0], [0.0, 0.0]])
    section = BranchGrpoAdvantage(weighting="none")
    found = per_segment(group, section)
    assert found == pytest.approx([0, 0.707107, -0.707107, 1.5, -0.5, -0.5, -0.5], abs=1e-6)
    assert per_segment(group, BranchGrpoAdvantage())[:4] == pytest.approx(
        [0, 0.353553, -0.353553, 1.5], abs=1e-6
    )


def test_branch_grpo_compares_only_what_exists_at_a_depth() -> None:
    # Depth 1: 1/2, 3 and 0; depth 2: 1 and 0. The leaves of depth 1 are not among the latter.
    group = group_of([[1.0, 0.0], 3.0, 0.0])
    values = np.array([0.5, 3.0, 0.0])
    scores = (values - values.mean()) / values.std(ddof=1)
    found = per_segment(group, BranchGrpoAdvantage(weighting="none"))
    assert [found[1], found[4], found[5]] == pytest.approx(scores.tolist(), abs=1e-6)
    assert found[2:4] == pytest.approx([0.707107, -0.707107], abs=1e-6)


def test_branch_grpo_weighs_by_probability() -> None:
    group = group_of([[1.0, 0.0], 0.0], tokens=1)
    shape = SharedPrefixes.from_group(group)
    logs = [0.0, -7.0, -1.0, -2.0, -7.0]
    values = probability_values(shape, group.rewards, logs)
    assert values[1:4].tolist() == pytest.approx([0.731059, 1.0, 0.0], abs=1e-6)
    warm = probability_values(shape, group.rewards, logs, temperature=2.0)
    assert warm[1] == pytest.approx(0.622459, abs=1e-6)


@pytest.mark.parametrize(("broken", "log"), [([], -2.0), ([4], -1.0), ([4, 6], 0.0)])
def test_the_log_prob_of_a_segment_is_the_sum_over_its_sampled_tokens(
    broken: list[int], log: float
) -> None:
    """Two turns of log-prob -1 against one; a token whose log-prob is no number counts as 0."""
    group = group_of([[[1.0], 0.0], 0.0, 1.0], tokens=1)
    first = group.samples[0]
    behaviour = np.where(first.sampled, first.behaviour, 77.0)
    behaviour[broken] = math.nan
    group = replace(group, samples=(replace(first, behaviour=behaviour), *group.samples[1:]))
    values = np.array([math.exp(log) / (math.exp(log) + math.exp(-1)), 0.0, 1.0])
    scores = (values - values.mean()) / values.std(ddof=1)
    found = per_segment(group, BranchGrpoAdvantage(value="probability", weighting="none"))
    assert found[1] == pytest.approx(scores[0], abs=1e-6)


def test_depth_scores_are_zero_without_a_spread() -> None:
    depths = np.array([0, 1, 1, 2, 2])
    values = np.array([3.0, 0.1, 0.1 + 1e-8, 1.0, 0.0])
    assert depth_scores(values, depths).tolist() == pytest.approx([0, 0, 0, 0.707107, -0.707107])
    wide = depth_scores(values, depths, epsilon=1.0)
    assert wide[3] == pytest.approx(0.5 / 1.707107, abs=1e-6)


def test_branch_grpo_clips_in_both_directions() -> None:
    group = group_of([1.0, 0.0])
    clipped = BranchGrpoAdvantage(clip=0.25)
    assert ends(advantage_of(clipped)([group])) == [0.25, -0.25]
    # Of 1 and 39 zeros the best has 6.17.
    long = group_of([1.0, *[0.0] * 39])
    assert ends(advantage_of(BranchGrpoAdvantage())([long]))[0] == 5.0
    assert ends(advantage_of(BranchGrpoAdvantage(clip=None))([long]))[0] > 6
    section = BranchGrpoAdvantage(epsilon=1.0)
    assert ends(advantage_of(section)([group]))[0] == pytest.approx(0.292893, abs=1e-6)


def test_probability_needs_the_temperature_of_the_section_and_behaviour_log_probs() -> None:
    group = group_of([[[1.0], 0.0], 0.0, 1.0], tokens=1)
    cold, warm = (
        per_segment(group, BranchGrpoAdvantage(value="probability", temperature=t)) for t in (1, 9)
    )
    assert cold[1] < warm[1]
    probability = BranchGrpoAdvantage(value="probability")
    assert find_needs(advantages.METHODS, probability) == {"behaviour logprobs"}
    assert find_needs(advantages.METHODS, BranchGrpoAdvantage()) == frozenset()
    assert find_needs(advantages.METHODS, AepoAdvantage()) == {"entropies"}


@given(shapes)
def test_a_segment_shared_with_weights_of_one_over_n_counts_once(below: Shape) -> None:
    group = group_of(below)
    once = sums(group, advantage_of(BranchGrpoAdvantage())([group]))
    each = advantage_of(BranchGrpoAdvantage(weighting="none"))([group])
    for sample, tokens in zip(group.samples, each, strict=True):
        for at in np.flatnonzero(sample.mask).tolist():
            assert once[int(sample.nodes[at]), at] == pytest.approx(float(tokens[at]), abs=1e-9)


# All of them.

SECTIONS: Mapping[str, ConfigSection] = {
    "arpo soft": ArpoAdvantage(),
    "arpo hard": ArpoAdvantage(shared="hard"),
    "aepo soft": AepoAdvantage(),
    "aepo hard": AepoAdvantage(shared="hard"),
    "tree_grpo": TreeGrpoAdvantage(),
    "tree_inner": TreeGrpoAdvantage(variant="tree_inner"),
    "tree_2norm": TreeGrpoAdvantage(variant="tree_2norm"),
    "tree_rl": TreeRlAdvantage(),
    "tree_rl code": TreeRlAdvantage(weighted="value", truncated=-1.0),
    "branch_grpo": BranchGrpoAdvantage(),
    "branch_grpo probability": BranchGrpoAdvantage(value="probability"),
}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
@settings(max_examples=20)
@given(below=shapes, order=st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(
    section: ConfigSection, below: Shape, order: Any
) -> None:
    group = with_entropies(group_of(below))
    turned = list(range(len(group.samples)))
    order.shuffle(turned)
    credit = advantage_of(section)([group])
    other = replace(group, samples=tuple(group.samples[i] for i in turned))
    for index, tokens in zip(turned, advantage_of(section)([other]), strict=True):
        # Values that are zero on paper may differ in their last bit, and tree_2norm scales them up.
        assert tokens == pytest.approx(credit[index], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
@settings(max_examples=20)
@given(below=shapes)
def test_the_names_of_nodes_do_not_matter(section: ConfigSection, below: Shape) -> None:
    group = with_entropies(group_of(below))
    renamed = replace(group, samples=tuple(rename_nodes(s, -7, 1000) for s in group.samples))
    pairs = zip(advantage_of(section)([group]), advantage_of(section)([renamed]), strict=True)
    for one, other in pairs:
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


@given(st.lists(rewards, min_size=2, max_size=6))
def test_without_branches_they_are_grpo(rewards: list[float]) -> None:
    group = group_of([*rewards])
    plain = ends(advantage_of(GrpoAdvantage())([group]))
    for section in (ArpoAdvantage(), ArpoAdvantage(shared="hard"), TreeGrpoAdvantage()):
        assert ends(advantage_of(section)([group])) == plain
    assert ends(advantage_of(BranchGrpoAdvantage())([group])) == pytest.approx(plain, abs=1e-5)
    inner = TreeGrpoAdvantage(variant="tree_inner")
    assert ends(advantage_of(inner)([group])) == [0.0] * len(rewards)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
@settings(max_examples=20)
@given(below=st.lists(shapes, min_size=2, max_size=3))
def test_groups_do_not_meet(section: ConfigSection, below: list[Shape]) -> None:
    """Only AEPO's factors are those of the batch, and equal entropies make them 1."""
    groups = [
        replace(g, samples=tuple(replace(s, entropies=np.ones(len(s.nodes))) for s in g.samples))
        for g in map(group_of, below)
    ]
    together = advantage_of(section)(groups)
    apart = [tokens for group in groups for tokens in advantage_of(section)([group])]
    assert [x.tolist() for x in together] == [x.tolist() for x in apart]
