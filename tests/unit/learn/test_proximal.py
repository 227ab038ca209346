"""Proximal policies that are neither behaviour nor current: between them by age, averages of the
trainer's weights, and the weights that sampled. Mutants applied by hand and seen caught:

- age 0 taken for behaviour; the average without its correction; the reset reversed
- samples scored by the current weights in place of the average; of a step, not at all
- snapshots: scored by other versions; not copied; one version forgotten too many
- the gap measured from the anchor; an anchor that is not restored from its checkpoint
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Linear
from transformers import PreTrainedModel

from agentrl.config.learn import AdamWSection, LearnSection
from agentrl.config.learning.correction import FlooredCorrection
from agentrl.config.learning.loss import PpoClipLoss
from agentrl.config.learning.proximal import (
    AnyProximal,
    BehaviourProximal,
    EwmaProximal,
    LinearProximal,
    LogLinearProximal,
    RevisedEwmaProximal,
    SnapshotProximal,
)
from agentrl.config.section import CustomMethod
from agentrl.errors import ConfigError
from agentrl.learn import proximals
from agentrl.learn.checkpoint import load
from agentrl.learn.ewma import EwmaAverage, StepAverage, VersionAverage, beta_of
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.method import bind_method, needs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.proximal import AnchorTokens
from agentrl.learn.proximals import anchor_of
from agentrl.learn.sample import spans_of
from agentrl.learn.snapshot import WeightSnapshots
from agentrl.learn.swap import swap_weights
from agentrl.learn.trainer import PolicyTrainer
from agentrl.trajectory import Tree
from tests.support.learning import (
    all_of,
    assert_close,
    block,
    gradient_of,
    gradients,
    head_of,
    model_of,
    rows_of,
    save,
    trees_of,
)

HEAD = "model.embed_tokens.weight"
"""The head's name among the parameters: it is tied."""

# --- between behaviour and current ----------------------------------------------------------------


def between(section: AnyProximal, ages: list[int]) -> list[float]:
    """Return the anchor's probability of tokens with mu = 0.2 and pi = 0.4."""
    probabilities = block([1.0] * len(ages))
    tokens = AnchorTokens(
        current=(0.4 * probabilities).log(),
        start=(0.9 * probabilities).log(),
        behaviour=(0.2 * probabilities).log(),
        mask=all_of(probabilities),
        ages=torch.tensor([ages]),
    )
    return bind_method(proximals.METHODS, section)(tokens).exp().tolist()[0]


def test_between_behaviour_and_current_golden() -> None:
    """Versions (0, 3, 4) of the specification give alpha 0.75.

    At ages 1 and 0 the anchor is the policy that sampled. The specification sets alpha 1 at age 0
    by a definition of its own, which makes the current policy its own anchor and clips nothing;
    AReaL's code has 0.
    """
    assert between(LogLinearProximal(), [4, 1, 0]) == pytest.approx([0.336359, 0.2, 0.2], abs=1e-6)
    assert between(LinearProximal(), [4, 1, 0]) == pytest.approx([0.35, 0.2, 0.2], abs=1e-6)
    # Two versions before the trainer's: alpha of ages 4, 2, 1, 0 is 1/2, 0, 0, 0.
    found = between(LinearProximal(lag=2), [4, 2, 1, 0])
    assert found == pytest.approx([0.3, 0.2, 0.2, 0.2], abs=1e-6)
    found = between(LogLinearProximal(lag=2), [4, 2, 1, 0])
    assert found == pytest.approx([math.sqrt(0.08), 0.2, 0.2, 0.2], abs=1e-6)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 5))
def test_the_anchor_lies_between_and_nearer_to_the_current_with_age(
    ages: list[int], lag: int
) -> None:
    by_log = between(LogLinearProximal(lag=lag), ages)
    by_mean = between(LinearProximal(lag=lag), ages)
    for log, mean in zip(by_log, by_mean, strict=True):
        assert 0.2 - 1e-6 <= log <= mean + 1e-6 <= 0.4 + 2e-6
    older = between(LinearProximal(lag=lag), [age + 1 for age in ages])
    assert all(o >= m - 1e-6 for o, m in zip(older, by_mean, strict=True))


# --- averages of the weights ----------------------------------------------------------------------


def scalar(value: float) -> Linear:
    """Return a model of one weight."""
    model = Linear(1, 1, bias=False)
    model.weight.data.fill_(value)
    return model


@pytest.mark.parametrize("on_cpu", [False, True])
def test_the_average_is_corrected_for_its_beginning(on_cpu: bool) -> None:
    model = scalar(0.0)
    average = EwmaAverage.from_model(model, on_cpu=on_cpu)
    for value in (1.0, 2.0):
        model.weight.data.fill_(value)
        average.update(model, beta=0.5)
    assert average.weights["weight"].item() == pytest.approx(1.428571, abs=1e-6)
    assert average.total == 1.75
    model.weight.data.fill_(7.0)
    average.update(model, beta=0.0)  # a reset
    assert (average.weights["weight"].item(), average.total) == (7.0, 1.0)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.floats(0, 0.99))
def test_the_average_is_the_weighted_mean_of_all_weights(values: list[float], beta: float) -> None:
    model = scalar(values[0])
    average = EwmaAverage.from_model(model)
    for value in values[1:]:
        model.weight.data.fill_(value)
        average.update(model, beta=beta)
    shares = beta ** np.arange(len(values))[::-1]
    expected = (shares * values).sum() / shares.sum()
    assert average.weights["weight"].item() == pytest.approx(expected, abs=1e-4)
    assert average.total == pytest.approx(shares.sum())


def test_an_average_keeps_what_bfloat16_would_lose_and_leaves_frozen_weights_out() -> None:
    model = scalar(1.0).to(torch.bfloat16)
    average = EwmaAverage.from_model(model)
    model.weight.data.fill_(1.0078125)  # the next number in bfloat16
    average.update(model, beta=0.9)
    assert 1.003 < average.weights["weight"].item() < 1.005
    model.weight.requires_grad_(False)
    assert not EwmaAverage.from_model(model).weights


def test_beta_puts_the_mean_age_in_the_middle_of_the_window() -> None:
    assert [beta_of(w) for w in (2, 4)] == pytest.approx([0.5, 2 / 3])
    for window in (1, 4, 8):
        beta = beta_of(window)
        assert beta / (1 - beta) == pytest.approx(window / 2)


def evidence_of(model: PreTrainedModel) -> LogprobScorer:
    """Return what scores samples with a model."""
    return LogprobScorer(model, PaddedLayout(8192), temperature=1.0, head_at_positions=True)


def scored_by(model: PreTrainedModel, rows: list[CreditedSample]) -> list[np.ndarray]:
    """Return the log-probs of a model, 0 off the mask."""
    samples = evidence_of(model).score_proximal([row.sample for row in rows])
    return [s.proximal for s in samples if s.proximal is not None]


def assert_scored(rows: list[CreditedSample], expected: list[np.ndarray]) -> None:
    """Assert that the rows have these proximal log-probs."""
    for row, logprobs in zip(rows, expected, strict=True):
        assert row.sample.proximal is not None
        np.testing.assert_allclose(row.sample.proximal, logprobs, atol=1e-6)


def bits(model: PreTrainedModel) -> list[Tensor]:
    """Return a copy of the weights."""
    return [p.detach().clone() for p in model.parameters()]


def move(model: PreTrainedModel, by: PreTrainedModel) -> None:
    """Give a model the weights of another."""
    model.load_state_dict(by.state_dict())


def test_weights_are_swapped_for_a_while_and_come_back_bit_for_bit() -> None:
    model, other = model_of(), model_of(1)
    rows = rows_of(trees_of())
    before, storage = bits(model), head_of(model).data_ptr()
    weights = {name: p.detach() for name, p in other.named_parameters()}
    with swap_weights(model, weights):
        assert_scored(rows_scored(model, rows), scored_by(other, rows))
    with pytest.raises(KeyError), swap_weights(model, weights):
        raise KeyError
    assert all(map(torch.equal, before, bits(model)))
    assert head_of(model).data_ptr() == storage
    with swap_weights(model, {HEAD: head_of(other).detach()}):
        assert torch.equal(head_of(model), head_of(other))
        assert not torch.equal(bits(model)[1], bits(other)[1])


def rows_scored(model: PreTrainedModel, rows: list[CreditedSample]) -> list[CreditedSample]:
    """Return the rows with a model's log-probs as proximal ones."""
    samples = evidence_of(model).score_proximal([row.sample for row in rows])
    return [CreditedSample(s, row.advantages) for s, row in zip(samples, rows, strict=True)]


def test_an_average_over_steps_scores_each_step_before_it_counts() -> None:
    model, first = model_of(), model_of()
    rows = rows_of(trees_of())
    anchor = StepAverage(evidence_of(model), beta=0.0)
    move(model, model_of(1))
    assert anchor.score_batch(rows, version=0) == rows
    assert_scored(anchor.score_update(rows), scored_by(first, rows))
    anchor.on_update()
    assert anchor.on_step(active_fraction=0.0) == {}
    assert_scored(anchor.score_update(rows), scored_by(model_of(1), rows))


def test_an_average_over_versions_begins_anew_where_too_few_tokens_are_active() -> None:
    model = model_of()
    rows = rows_of(trees_of())
    anchor = VersionAverage(evidence_of(model), window_versions=2, reset_below=0.9)
    move(model, model_of(1))
    assert anchor.score_update(rows) == rows
    assert_scored(anchor.score_batch(rows, version=0), scored_by(model_of(), rows))
    anchor.on_update()  # optimiser steps do not count
    assert anchor.average.total == 1.0
    assert anchor.on_step(active_fraction=0.9) == {"proximal/reset": 0.0}
    assert anchor.average.total == 1.5
    expected = head_of(model_of()) / 3 + head_of(model_of(1)) * 2 / 3
    torch.testing.assert_close(anchor.average.weights[HEAD], expected.detach())
    assert anchor.on_step(active_fraction=0.89) == {"proximal/reset": 1.0}
    assert torch.equal(anchor.average.weights[HEAD], head_of(model_of(1)))
    assert_scored(anchor.score_batch(rows, version=1), scored_by(model_of(1), rows))


def ppo_ewma(current: Tensor, mean: Tensor, behaviour: Tensor, advantage: Tensor) -> Tensor:
    """Return the published loss of tokens, clip 0.2, behaviour floored at current / 100."""
    behaviour = torch.maximum(behaviour, current.detach() - math.log(100))
    clipped = (current - mean).clamp(math.log(0.8), math.log(1.2)) + mean - behaviour
    plain = (current - behaviour).exp()
    return torch.maximum(-advantage * plain, -advantage * clipped.exp())


def test_an_average_with_the_floored_correction_is_the_published_loss() -> None:
    model, mean = model_of(), model_of(3)
    rows = rows_scored(mean, rows_of(trees_of(gap=3.0)))
    config = LearnSection(
        proximal=EwmaProximal(),
        correction=FlooredCorrection(),
        loss=PpoClipLoss(clip_low=0.2, clip_high=0.2, dual_clip=None),
    )
    found = gradients(model, rows, config)[:-1]
    model.zero_grad(set_to_none=True)
    total, floored = torch.zeros(()), 0
    for row in rows:
        ids, at = torch.tensor(row.sample.token_ids), np.flatnonzero(row.sample.mask)
        logs: Any = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
        current = logs[at - 1, ids[at]]
        assert row.sample.proximal is not None
        old, sampled, credit = (
            torch.tensor(x[at], dtype=torch.float32)
            for x in (row.sample.proximal, row.sample.behaviour, row.advantages)
        )
        floored += int((sampled < current.detach() - math.log(100)).sum())
        total = total + ppo_ewma(current, old, sampled, credit).sum()
    assert floored > 0
    (total / sum(row.sample.sampled_tokens for row in rows)).backward()
    assert_close(found, gradient_of(model))


# --- the weights that sampled ---------------------------------------------------------------------


def aged(rows: list[CreditedSample], versions: list[int]) -> list[CreditedSample]:
    """Return the rows with sampled tokens of these versions in turn, oldest first in each row."""
    aged_rows: list[CreditedSample] = []
    for row in rows:
        sample, sampled_by = row.sample, row.sample.versions
        sampled_by[sample.mask] = np.sort(np.resize(versions, sample.sampled_tokens))
        spans = spans_of(
            sample.sampled, nodes=sample.nodes, turns=sample.turns, versions=sampled_by
        )
        aged_rows.append(replace(row, sample=replace(sample, spans=spans)))
    return aged_rows


def test_every_token_is_scored_by_the_weights_that_sampled_it() -> None:
    model = model_of(0)
    snapshots = WeightSnapshots(evidence_of(model), versions=4)
    for version in range(3):
        move(model, model_of(version))
        rows = aged(rows_of(trees_of()), list(range(version + 1)))
        found = snapshots.score_batch(rows, version=version)
        by_version = [scored_by(model_of(v), rows) for v in range(version + 1)]
        for i, row in enumerate(found):
            assert row.sample.proximal is not None
            assert row.sample.mask.tolist() == rows[i].sample.mask.tolist()
            for t in np.flatnonzero(row.sample.mask):
                expected = by_version[row.sample.versions[t]][i][t]
                assert row.sample.proximal[t] == pytest.approx(expected, abs=1e-6)
            assert not row.sample.proximal[~row.sample.mask].any()
        assert snapshots.on_step(active_fraction=1.0)["proximal/replaced_fraction"] == 0.0
    assert all(map(torch.equal, bits(model), bits(model_of(2))))


def test_what_nobody_refers_to_is_dropped_and_the_next_stands_for_what_is_gone() -> None:
    model = model_of(0)
    snapshots = WeightSnapshots(evidence_of(model), versions=3)
    rows = rows_of(trees_of())
    for version in range(5):
        move(model, model_of(version))
        snapshots.score_batch(aged(rows, [version]), version=version)
    assert snapshots.versions == [2, 3, 4]
    snapshots.forget(before=3)
    assert snapshots.versions == [3, 4]
    move(model, model_of(5))
    found = snapshots.score_batch(aged(rows, [1]), version=5)
    assert_scored(found, scored_by(model_of(3), rows))
    figures = snapshots.on_step(active_fraction=1.0)
    assert figures == {"proximal/versions": 3.0, "proximal/replaced_fraction": 1.0}
    snapshots.forget(before=9)
    assert_scored(snapshots.score_batch(aged(rows, [1]), version=5), scored_by(model, rows))


# --- in the trainer -------------------------------------------------------------------------------


def trainer_of(proximal: AnyProximal, **changes: Any) -> PolicyTrainer:
    """Return a trainer that moves fast."""
    optimizer = AdamWSection(learning_rate=0.02)
    section = LearnSection(proximal=proximal, optimizer=optimizer, **changes)
    return PolicyTrainer(model_of(), section, seed=0)


def batch(version: int) -> list[Tree]:
    """Return what a run trains on when the trainer is at a version: tokens of age 1."""
    return trees_of(2, seed=version, version=max(0, version - 1), gap=0.5)


ANCHORS = [EwmaProximal(), RevisedEwmaProximal(reset_below=0.0), SnapshotProximal(versions=2)]


@pytest.mark.parametrize("proximal", ANCHORS)
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(
    proximal: AnyProximal, minibatches: int, tmp_path: Path
) -> None:
    whole = trainer_of(proximal, minibatches=minibatches)
    for version in range(2):
        whole.step(batch(version))
    folder = save(tmp_path, whole)
    resumed = trainer_of(proximal, minibatches=minibatches)
    load(folder, resumed)
    for version in range(2, 4):
        assert whole.step(batch(version)) == resumed.step(batch(version))
    assert all(map(torch.equal, bits(whole.model), bits(resumed.model)))
    kept = whole.anchor.state()
    assert kept.keys() == resumed.anchor.state().keys()
    assert all(torch.equal(value, resumed.anchor.state()[name]) for name, value in kept.items())


@pytest.mark.parametrize("proximal", ANCHORS)
def test_a_checkpoint_without_an_anchor_begins_one_with_its_weights(
    proximal: AnyProximal, tmp_path: Path
) -> None:
    plain = trainer_of(LogLinearProximal())
    plain.step(batch(0))
    folder = save(tmp_path, plain)
    assert not list(folder.glob("ewma*")) + list(folder.glob("snapshots*"))
    resumed = trainer_of(proximal)
    load(folder, resumed)
    state = resumed.anchor.state()
    if isinstance(resumed.anchor, WeightSnapshots):
        assert not state
    else:
        assert torch.equal(state[f"weights.{HEAD}"], head_of(plain.model))
    resumed.step(batch(1))


def test_the_average_moves_as_often_as_its_method_says() -> None:
    by_step = trainer_of(EwmaProximal(beta=0.5), minibatches=2, epochs=2)
    by_version = trainer_of(RevisedEwmaProximal(window_versions=2, reset_below=0.0), minibatches=2)
    for trainer in (by_step, by_version):
        trainer.step(batch(0))
    assert by_step.anchor.state()["total"].item() == 1.9375  # four updates: 1 + 1/2 + ... + 1/16
    assert by_version.anchor.state()["total"].item() == 1.5


@pytest.mark.parametrize("proximal", ANCHORS)
def test_the_clip_is_anchored_to_what_is_kept(proximal: AnyProximal) -> None:
    trainer = trainer_of(proximal, loss=PpoClipLoss(clip_low=0.0, clip_high=0.0))
    assert trainer.step(batch(0))["ratio/clip_fraction"] == 0.0
    # One optimiser step a batch: anchored to the weights at its start, the ratio would be 1 again.
    assert trainer.step(batch(1))["ratio/clip_fraction"] > 0.1


def test_an_average_is_begun_anew_by_what_the_clip_leaves() -> None:
    tight = PpoClipLoss(clip_low=0.0, clip_high=0.0)
    trainer = trainer_of(RevisedEwmaProximal(), loss=tight)
    assert trainer.step(batch(0))["proximal/reset"] == 0.0  # r is 1: nothing is clipped yet
    figures = trainer.step(batch(1))
    assert figures["ratio/active_fraction"] < 0.9
    assert figures["proximal/reset"] == 1.0
    assert trainer.anchor.state()["total"].item() == 1.0


def test_snapshots_are_forgotten_through_the_trainer() -> None:
    trainer = trainer_of(SnapshotProximal())
    for version in range(3):
        trainer.step(batch(version))
    assert isinstance(trainer.anchor, WeightSnapshots)
    assert trainer.anchor.versions == [0, 1, 2]
    trainer.forget(before=2)
    assert trainer.anchor.versions == [2]
    assert trainer.step(batch(3))["proximal/versions"] == 2.0


def test_with_an_anchor_elsewhere_the_gap_is_still_that_of_the_weights_at_batch_start() -> None:
    plain = trainer_of(LogLinearProximal()).step(batch(0))
    for proximal in ANCHORS:
        trainer = trainer_of(proximal)
        if isinstance(trainer.anchor, StepAverage | VersionAverage):
            for value in trainer.anchor.average.weights.values():
                value.zero_()  # an anchor that is far from any policy
        found = trainer.step(batch(0))
        for name in ("engine_gap/mean_abs", "engine_gap/max", "engine_gap/ess"):
            assert found[name] == pytest.approx(plain[name], rel=1e-5)


@needs("averaged logprobs")
def own(tokens: AnchorTokens) -> Tensor:
    """Return an anchor that only an average can give."""
    return tokens.start


def test_a_function_of_the_users_cannot_be_given_weights_that_nobody_keeps() -> None:
    section = CustomMethod(function=f"{__name__}:own")
    with pytest.raises(
        ConfigError, match=r"needs averaged logprobs, which learn.proximal custom does not keep"
    ):
        anchor_of(section, evidence_of(model_of()), frozenset({"averaged logprobs"}))


def test_on_tokens_of_age_0_the_interpolated_anchors_clip_as_the_policy_that_sampled() -> None:
    model, rows = model_of(), rows_of(trees_of(gap=1.0))
    expected = gradients(model, rows, LearnSection(proximal=BehaviourProximal()))
    assert (expected - gradients(model, rows, LearnSection())).norm() > 1e-3
    for proximal in (LogLinearProximal(), LinearProximal()):
        assert_close(gradients(model, rows, LearnSection(proximal=proximal)), expected)
