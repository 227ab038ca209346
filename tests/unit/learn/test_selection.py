"""Which samples and tokens of a batch train.

Mutants seen caught: only the smallest values; the mean not taken off the squares; the last bit of
an advantage, or the order of tokens, deciding ties; a sign, entropy or weight not scored;
counts rounded up; rows without tokens counted; entropies not asked for; a truncated batch trained
on, or gone; a schedule that stands still; one seed for two selections; groups misread for reports.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.learning.selection import D3sSelection, OverlongSelection
from agentrl.config.section import CustomMethod
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import groups_of
from agentrl.learn.selection import SelectionContext, d3s, furthest_apart, most_credit, overlong
from agentrl.learn.trainer import PolicyTrainer
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree, Truncated
from tests.support.learning import model_of, trees_of

START = SelectionContext(step=0, steps=10, seed=0)
HALF = SelectionContext(step=5, steps=10, seed=0)


def ties(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def row_of(
    advantages: Sequence[float], entropies: Sequence[float], *, sample: int = 0
) -> CreditedSample:
    """Return a row: one prompt token, then tokens of these advantages and entropies."""
    n = len(advantages)
    tree = Tree(Task(prompt="q", id="t"))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(2,), turn=0))
    spoken = Node(
        parent=at,
        source="sampled",
        token_ids=(3,) * n,
        turn=0,
        logprobs=(-1.0,) * n,
        versions=(0,) * n,
    )
    tree.end(Leaf(node=tree.add(spoken), outcome=Finished(1.0), sample=sample))
    ((found,),) = (group.samples for group in groups_of([tree]))
    # What stands off the mask is poison.
    padded = np.array([np.nan, *map(float, entropies)])
    return CreditedSample(
        replace(found, entropies=padded), np.array([np.nan, *map(float, advantages)])
    )


def kept_tokens(rows: Sequence[CreditedSample]) -> list[list[int]]:
    """Return which tokens of each row train, counted from the first sampled one."""
    return [(np.flatnonzero(row.sample.mask) - 1).tolist() for row in rows]


def test_the_samples_of_the_specification() -> None:
    values = np.array([-1.5, -0.5, -0.1, 0.1, 0.5, 1.5])
    chosen = furthest_apart(values, 3, ties=ties())
    assert chosen.tolist() == [0, 4, 5]
    assert values[chosen].var() == pytest.approx(1.555556, abs=1e-6)
    assert values[:3].var() == values[3:].var() == pytest.approx(0.346667, abs=1e-6)


def test_the_tokens_of_the_specification() -> None:
    scores = np.abs([0.5, -1.5, 1.0]) * [2.0, 0.1, 1.2]
    assert scores.tolist() == pytest.approx([1.0, 0.15, 1.2])
    assert most_credit(scores, 0.67, ties=ties()).tolist() == [True, False, True]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=7), st.data())
def test_no_other_choice_is_further_apart(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    found = furthest_apart(
        np.array(values, dtype=float), count, ties=ties(data.draw(st.integers(0, 9)))
    )
    assert len(set(found.tolist())) == count
    assert found.tolist() == sorted(found.tolist())
    most = max(np.var(choice) for choice in combinations(values, count))
    assert np.var(np.array(values)[found]) == pytest.approx(most, abs=1e-8)


@given(st.lists(st.floats(0, 9, allow_subnormal=False), min_size=1, max_size=9), st.floats(0.01, 1))
def test_no_token_that_is_left_out_has_more(scores: list[float], share: float) -> None:
    array = np.array(scores)
    kept = most_credit(array, share, ties=ties())
    assert 1 <= kept.sum() <= len(scores)
    assert abs(kept.sum() - max(1.0, share * len(scores))) <= 0.5
    if not kept.all():
        assert array[kept].min() >= array[~kept].max()


def test_ties_are_broken_by_the_seed_and_by_nothing_else() -> None:
    equal = np.ones(8)
    draws = {tuple(furthest_apart(equal, 2, ties=ties(seed)).tolist()) for seed in range(20)}
    assert len(draws) > 5
    again = {tuple(furthest_apart(equal, 2, ties=ties(3)).tolist()) for _ in range(3)}
    assert len(again) == 1
    tokens = {tuple(most_credit(equal, 0.25, ties=ties(seed)).tolist()) for seed in range(20)}
    assert len(tokens) > 5
    nearly = np.array([1.0, 1.0 + 1e-12] * 4)
    places = [i for s in range(20) for i in furthest_apart(nearly, 2, ties=ties(s)).tolist()]
    assert {*places} == {*range(8)}, "the last bit of an advantage is no reason"


def test_shares_go_evenly_from_the_first_step_to_the_end_of_the_run() -> None:
    rows = [
        row_of([a] * 10, range(1, 11), sample=i) for i, a in enumerate([-2, -1, 0, 1, 2, 3, 4, 5])
    ]

    def counts(step: int, steps: int) -> tuple[int, int]:
        moment = SelectionContext(step=step, steps=steps, seed=0)
        whole = d3s(rows, moment, samples=(0.25, 0.75), tokens=(1.0, 1.0))
        part = d3s(rows, moment, samples=(1.0, 1.0), tokens=(0.2, 0.6))
        return len(whole), sum(row.sample.sampled_tokens for row in part)

    assert [counts(step, 10) for step in (0, 5, 10, 99)] == [(2, 16), (4, 32), (6, 48), (6, 48)]
    assert counts(0, 0) == (6, 48), "a run of unknown length is at its end"
    found = d3s(rows, START, samples=(0.01, 1.0), tokens=(0.01, 1.0))
    assert len({row.sample.sample for row in found}) == 1, "one token is left of two samples"


def test_what_trains_is_in_the_masks_and_advantages_stay_as_they_are() -> None:
    rows = [
        row_of([0.1, 0.1, 0.1], [9, 9, 9], sample=0),
        row_of([2.0, 2.0, 2.0], [0.3, 0.1, 0.5], sample=1),
        row_of([-1.0, -1.0], [0.9, 0.05], sample=2),
        row_of([0.0], [9.0], sample=3),
    ]
    found = d3s(rows, START, samples=(0.5, 0.5), tokens=(0.6, 0.6))
    assert [row.sample.sample for row in found] == [1, 2]
    assert kept_tokens(found) == [[0, 2], [0]]
    assert all(row.advantages is rows[row.sample.sample].advantages for row in found)
    assert [row.sample.sampled.sum() for row in found] == [3, 2], "what was sampled stays sampled"


def test_tokens_that_weigh_nothing_do_not_use_up_the_share() -> None:
    light, full = (row_of([a] * 3, [1, 1, 1], sample=i) for i, a in enumerate([5.0, 1.0]))
    light = replace(light, sample=replace(light.sample, weights=np.array([np.nan, 0.0, 0.0, 0.0])))
    found = d3s([light, full], START, samples=(1.0, 1.0), tokens=(0.5, 0.5))
    assert [
        (row.sample.sample, *kept) for row, kept in zip(found, kept_tokens(found), strict=True)
    ] == [(1, 0, 1, 2)]


def test_rows_without_tokens_are_no_part_of_any_share() -> None:
    empty = row_of([9.0], [1.0], sample=7)
    empty = replace(empty, sample=replace(empty.sample, mask=np.zeros(2, dtype=bool)))
    rows = [row_of([a], [1.0], sample=i) for i, a in enumerate([-1.0, 0.0, 0.1, 1.0])]
    found = d3s([empty, *rows], START, samples=(0.5, 1.0), tokens=(1.0, 1.0))
    assert [row.sample.sample for row in found] == [0, 3]
    assert d3s([empty], START) == d3s([], START) == []


def test_no_entropies_are_named() -> None:
    row = row_of([1.0], [1.0], sample=4)
    bare = replace(row, sample=replace(row.sample, entropies=None))
    with pytest.raises(ValueError, match=r"task 't' sample 4 has no entropies"):
        d3s([bare], START)


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_shares_are_shares(share: float) -> None:
    with pytest.raises(ValidationError):
        D3sSelection(samples=(share, 1.0))
    with pytest.raises(ValidationError):
        D3sSelection(tokens=(0.5, share))


def truncated(row: CreditedSample) -> CreditedSample:
    return replace(row, sample=replace(row.sample, truncated=True))


def test_what_was_cut_off_does_not_train() -> None:
    rows = [row_of([a], [1.0], sample=i) for i, a in enumerate([-1.0, 0.5, 1.0])]
    assert overlong([truncated(rows[0]), *rows[1:]], START) == rows[1:]
    cut = [truncated(row) for row in rows]
    found = overlong(cut, START)
    assert [row.sample for row in found] == [row.sample for row in cut]
    assert all(row.is_idle for row in found)
    assert not any(row.is_idle for row in cut), "the rows that were given are as they were"
    empty = replace(rows[0], sample=replace(rows[0].sample, mask=np.zeros(2, dtype=bool)))
    found = overlong([empty, *cut], START)
    assert len(found) == 4, "something is left to be skipped"
    assert all(row.is_idle for row in found)


# --- in the trainer -------------------------------------------------------------------------------


def cut_off(trees: Sequence[Tree], *samples: int) -> list[Tree]:
    """Return the trees with these trajectories cut off by a limit."""
    found: list[Tree] = []
    for tree in trees:
        copy = Tree(tree.task)
        for node in tree.nodes:
            copy.add(node)
        for leaf in tree.leaves:
            reward = leaf.outcome.reward if isinstance(leaf.outcome, Finished) else 0.0
            outcome = Truncated("tokens", reward) if leaf.sample in samples else leaf.outcome
            copy.end(replace(leaf, outcome=outcome))
        found.append(copy)
    return found


def trained(
    config: LearnSection, trees: Sequence[Tree], *, steps: int | None = None
) -> tuple[dict[str, float], PolicyTrainer]:
    trainer = PolicyTrainer(model_of(), config, seed=3, steps=steps)
    return trainer.step(trees), trainer


def weights_of(trainer: PolicyTrainer) -> np.ndarray:
    return np.concatenate([w.double().numpy().ravel() for w in trainer.weights().values()])


def test_a_cut_off_trajectory_is_in_the_baseline_and_in_no_denominator() -> None:
    trees = trees_of(1)
    config = LearnSection(selection=(OverlongSelection(),), correction=NoCorrection())
    metrics, _ = trained(config, cut_off(trees, 3))
    lengths = [sum(t.mask) for t in trees[0].trajectories()]
    assert metrics["tokens/trained"] == sum(lengths[:3])
    assert metrics["batch/trajectories"] == 4
    assert metrics["reward/mean"] == 1.5
    assert metrics["selection/trajectories"] == 0.75
    assert metrics["selection/tokens"] == pytest.approx(sum(lengths[:3]) / sum(lengths))
    assert metrics["advantage/zero_fraction"] == 0
    # Sample 1 has less than the mean of all four, and would have the mean of the first three.
    assert metrics["loss"] == pytest.approx(-_mean_credit(lengths[:3], [0, 1, 2, 3]), abs=1e-5)


def _mean_credit(lengths: Sequence[int], rewards: Sequence[float]) -> float:
    values = np.array(rewards, dtype=float)
    credit = (values - values.mean()) / values.std(ddof=1)
    return float(np.dot(lengths, credit[: len(lengths)]) / sum(lengths))


def test_a_batch_in_which_all_was_cut_off_leaves_the_weights_alone() -> None:
    config = LearnSection(selection=(OverlongSelection(),))
    metrics, trainer = trained(config, cut_off(trees_of(2), 0, 1, 2, 3))
    assert metrics["optimizer/skipped"] == 1
    assert trainer.version == 1
    assert (weights_of(trainer) == weights_of(PolicyTrainer(model_of(), config, seed=3))).all()


def test_d3s_trains_on_its_share_whatever_the_micro_batches() -> None:
    trees = trees_of(4)
    found: list[np.ndarray] = []
    for limit in (64, 8192):
        config = LearnSection(selection=(D3sSelection(),), micro_batch_tokens=limit)
        metrics, trainer = trained(config, trees, steps=100)
        # 16 trajectories: a quarter of them, and a fifth of their tokens.
        assert metrics["selection/trajectories"] <= 0.25
        assert 0 < metrics["selection/tokens"] < 0.1
        assert metrics["advantage/zero_fraction"] == 0, (
            "of what was sampled, not of what was chosen"
        )
        found.append(weights_of(trainer))
    before = weights_of(PolicyTrainer(model_of(), LearnSection(), seed=3))
    change = [w - before for w in found]
    assert np.linalg.norm(change[0] - change[1]) <= 1e-3 * np.linalg.norm(change[0])


def test_d3s_is_everything_after_the_last_step() -> None:
    trees = trees_of(3)
    metrics, all_in = trained(LearnSection(selection=(D3sSelection(),)), trees)
    _, plain = trained(LearnSection(), trees)
    assert metrics["selection/tokens"] == metrics["selection/trajectories"] == 1
    assert np.abs(weights_of(all_in) - weights_of(plain)).max() < 1e-6


def test_a_step_without_any_credit_is_skipped() -> None:
    trees = trees_of(2, group=1)
    metrics, _ = trained(LearnSection(selection=(D3sSelection(),)), trees, steps=10)
    assert metrics["optimizer/skipped"] == 1


SEEN: list[SelectionContext] = []


def note(rows: Sequence[CreditedSample], moment: SelectionContext) -> Sequence[CreditedSample]:
    """A selection that keeps everything and remembers when."""
    SEEN.append(moment)
    return rows


def test_a_selection_of_ones_own_hears_when_it_is() -> None:
    SEEN.clear()
    own = CustomMethod(function="tests.unit.learn.test_selection:note")
    trainer = PolicyTrainer(model_of(), LearnSection(selection=(own, own)), seed=3, steps=7)
    for version in range(2):
        trainer.step(trees_of(1, version=version))
    assert [(m.step, m.steps) for m in SEEN] == [(0, 7), (0, 7), (1, 7), (1, 7)]
    assert len({m.seed for m in SEEN}) == 4
