"""What is reported of engine and trainer, of weights and of ages, and the alarm on the gap. Mutants
applied by hand and seen caught: the sign of k1; ages ignored; an alarm that never looks, or lets a
gap pass that is no number; masked or rejected tokens counted as active.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import GapAlarmSection, LearnSection
from agentrl.config.learning.correction import MaskedCorrection, NoCorrection
from agentrl.config.learning.rejection import DivergenceRejection
from agentrl.errors import LearnError
from agentrl.learn.correction import CorrectionWeights, PolicyMismatch, log_ratio
from agentrl.learn.corrections import icepop, measure_ratios, truncate_ratios
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_gap import GapAlarm, complaint, gap_metrics, observe_gap, observe_weights
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.report import batch_metrics
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.metrics.accumulator import MetricAccumulator
from agentrl.trajectory import Tree
from tests.support.learning import all_of, block, mismatch, model_of, rows_of, trees_of


def row(*values: float) -> Tensor:
    """Return one sequence."""
    return block(values)


RHO = row(2.0, 0.5, 1.0)
LOG2 = math.log(2)


def observed(
    tokens: PolicyMismatch,
    weights: CorrectionWeights,
    behaviour: Tensor | None = None,
    *,
    parts: int = 1,
) -> dict[str, float]:
    """Return the metrics of these tokens, seen in so many micro-batches."""
    tally = MetricAccumulator()
    behaviour = torch.zeros_like(tokens.gaps) if behaviour is None else behaviour
    for gaps, mu, ages, mask, applied, raw in zip(
        *(
            x.chunk(parts)
            for x in (
                tokens.gaps,
                behaviour,
                tokens.ages,
                tokens.mask,
                weights.applied,
                weights.raw,
            )
        ),
        strict=True,
    ):
        observe_gap(tally, gaps=gaps, behaviour=mu, ages=ages, mask=mask)
        observe_weights(tally, CorrectionWeights(applied, raw, weights.cap), mask)
    return gap_metrics(tally)


def test_metrics_golden() -> None:
    tokens = mismatch(RHO.log(), ages=torch.tensor([[0, 1, 0]]))
    assert observed(tokens, truncate_ratios(tokens, cap=1.5)) == pytest.approx(
        {
            "engine_gap/ess": 0.777778,  # (7/6)^2 / (5.25/3)
            "engine_gap/chi2": 0.75,  # 5.25/3 - 1
            "engine_gap/mean_abs": 2 * LOG2 / 3,
            "engine_gap/max": LOG2,
            "engine_gap/kl_k1": 0.0,
            "engine_gap/kl": (0.306853 + 0.193147) / 3,  # k3 of 2 and of 0.5
            "engine_gap/nonfinite": 0.0,
            "engine_gap/age0_fraction": 2 / 3,
            "engine_gap/age0_mean_abs": LOG2 / 2,
            "engine_gap/age0_max": LOG2,
            "engine_gap/age0_kl": 0.306853 / 2,
            "tis/clipped_fraction": 1 / 3,
            "tis/low_fraction": 1 / 3,  # 0.5 < 1 / 1.5
            "correction/mean": 1.0,
            "correction/ess": 1 / (3.5 / 3),  # of 1.5, 0.5 and 1
            "correction/zero_fraction": 0.0,
        },
        abs=1e-6,
    )
    masked = observed(tokens, icepop(tokens, low=0.6, high=1.6))
    assert masked["correction/zero_fraction"] == pytest.approx(2 / 3)
    assert masked["correction/ess"] == pytest.approx(1 / 3)
    nothing = observed(tokens, icepop(tokens, low=3.0, high=4.0))
    assert nothing["correction/ess"] == 0.0


def test_what_is_off_the_mask_counts_nowhere_and_micro_batches_add_up() -> None:
    mask = torch.tensor([[True, True, True, False], [False, True, False, False]])
    gaps = block([LOG2, -LOG2, 0.0, math.nan], [9.0, 0.3, math.inf, 9.0])
    ages = torch.where(mask, torch.tensor([[0, 1, 0, 0], [0, 2, 0, 0]]), 0)
    zeros = torch.zeros_like(gaps)
    tokens = PolicyMismatch(gaps, zeros, zeros, mask, ages, ages)
    poison = torch.where(mask, -1.0, math.nan)
    whole = observed(tokens, truncate_ratios(tokens), poison)
    assert whole["engine_gap/mean_abs"] == pytest.approx((2 * LOG2 + 0.3) / 4)
    assert whole["engine_gap/nonfinite"] == 0.0
    assert whole["engine_gap/age0_fraction"] == 0.5
    assert observed(tokens, truncate_ratios(tokens), poison, parts=2) == pytest.approx(whole)


def test_metrics_see_direction_and_missing_numbers() -> None:
    behaviour = row(-2.0, math.nan)
    proximal = row(-2.0 + LOG2, -5.0)
    gaps = log_ratio(proximal, behaviour, all_of(proximal))
    tokens = mismatch(gaps)
    found = observed(tokens, measure_ratios(tokens), behaviour)
    assert found["engine_gap/kl_k1"] == pytest.approx(-LOG2 / 2)
    assert found["engine_gap/nonfinite"] == 0.5
    assert found["tis/clipped_fraction"] == found["tis/low_fraction"] == 0.0
    # A token without a number has a gap of 0, which says nothing of the engine.
    assert found["engine_gap/age0_mean_abs"] == pytest.approx(LOG2)
    tokens = mismatch(-gaps)
    assert observed(tokens, measure_ratios(tokens))["engine_gap/max"] == pytest.approx(LOG2)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_divergences_are_never_negative_and_sample_sizes_are_fractions(logs: list[float]) -> None:
    tokens = mismatch(row(*logs))
    found = observed(tokens, truncate_ratios(tokens))
    for name in ("engine_gap/kl", "engine_gap/age0_kl"):
        assert found[name] >= -1e-9
    for name in ("engine_gap/ess", "correction/ess"):
        assert 0 < found[name] <= 1 + 1e-6


def test_small_divergences_are_not_lost_to_rounding() -> None:
    tokens = mismatch(row(1e-5, -1e-5))
    assert observed(tokens, measure_ratios(tokens))["engine_gap/kl"] == pytest.approx(
        5e-11, rel=1e-4
    )


# --- the alarm ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "complains"),
    [(0.1, False), (0.1001, True), (math.nan, True), (None, False)],
)
def test_the_alarm_is_about_tokens_of_age_0(found: float | None, complains: bool) -> None:
    seen = {"engine_gap/mean_abs": 5.0}
    if found is not None:
        seen |= {
            "engine_gap/age0_mean_abs": found,
            "engine_gap/age0_max": 3.0,
            "engine_gap/age0_fraction": 0.25,
        }
    text = complaint(seen, limit=0.1)
    assert (text is not None) is complains
    if text is not None:
        assert "(25% of those seen)" in text
        assert f"{found:.3g} nats on average and 3 at most" in text
        assert "learn.gap_alarm.mean_abs allows 0.1" in text


def trainer_of(**alarm: Any) -> PolicyTrainer:
    """Return a trainer with an alarm."""
    return PolicyTrainer(model_of(), LearnSection(gap_alarm=GapAlarmSection(**alarm)), seed=0)


def faithful(trees: list[Tree], model: PreTrainedModel) -> list[Tree]:
    """Return the trees with the model's own log-probs, as an engine with its weights gives them."""
    rows = rows_of(trees)
    evidence = LogprobScorer(model, PaddedLayout(8192), temperature=1.0, head_at_positions=True)
    found: dict[tuple[str, int], list[float]] = {}
    for sample in evidence.score_proximal([row.sample for row in rows]):
        assert sample.proximal is not None
        for t in np.flatnonzero(sample.mask):
            key = (sample.task_id, int(sample.nodes[t]))
            found.setdefault(key, []).append(float(sample.proximal[t]))
    return [rewritten(tree, found) for tree in trees]


def rewritten(tree: Tree, logprobs: Mapping[tuple[str, int], Sequence[float]]) -> Tree:
    """Return a tree with other log-probs, by task and node."""
    other = Tree(tree.task)
    for index, node in enumerate(tree.nodes):
        other.add(replace(node, logprobs=tuple(logprobs.get((tree.task.id, index), ()))))
    for leaf in tree.leaves:
        other.end(leaf)
    return other


def test_an_engine_with_the_same_weights_is_far_below_the_alarm() -> None:
    trainer = trainer_of(action="stop", mean_abs=1e-4)
    figures = trainer.step(faithful(trees_of(), trainer.model))
    assert figures["engine_gap/age0_max"] < 1e-4


def test_the_alarm_stops_a_run_before_its_weights_move() -> None:
    trainer = trainer_of(action="stop")
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(LearnError, match=r"engine and trainer disagree.*\(100%.*action to warn$"):
        trainer.step(trees_of(gap=1.0))
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert (trainer.version, trainer.optimizer.updates) == (0, 0)


def test_the_alarm_says_nothing_of_older_tokens() -> None:
    trainer = trainer_of(action="stop")
    trainer.version = 1
    figures = trainer.step(trees_of(gap=1.0, version=0))
    assert figures["engine_gap/mean_abs"] > 0.5
    assert figures["engine_gap/age0_fraction"] == 0.0
    assert "engine_gap/age0_mean_abs" not in figures


def test_the_alarm_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of()
    with caplog.at_level(logging.WARNING):
        for version in range(2):
            trainer.step(trees_of(gap=1.0, version=version))
    assert [r.name for r in caplog.records] == ["agentrl.learn.logprob_gap"]
    assert "engine and trainer disagree" in caplog.text


def test_the_alarm_can_be_off_and_its_limit_raised(caplog: pytest.LogCaptureFixture) -> None:
    for alarm in ({"action": "none"}, {"action": "stop", "mean_abs": 50.0}):
        trainer_of(**alarm).step(trees_of(gap=1.0))
    assert not caplog.records


def test_the_alarm_looks_at_the_first_optimiser_step_alone() -> None:
    tally = MetricAccumulator()
    alarm = GapAlarm(GapAlarmSection(action="stop"))
    alarm.look(tally)  # nothing was seen, nothing is wrong
    tokens = mismatch(row(0.2))
    observe_gap(tally, gaps=tokens.gaps, behaviour=row(-1.0), ages=tokens.ages, mask=tokens.mask)
    with pytest.raises(LearnError):
        alarm.look(tally)


# --- ages and activity, in the trainer ------------------------------------------------------------


def test_the_ages_of_a_batch_are_reported_by_their_spread() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    trainer.version = 7
    trees = trees_of(2) + trees_of(2, version=5) + trees_of(5, version=7)
    figures = trainer.step(trees)
    ages = sorted(
        7 - int(v) for each in rows_of(trees) for v in each.sample.versions[each.sample.mask]
    )
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert figures[f"age/{name}"] == ages[math.ceil(share * len(ages)) - 1]
    assert figures["age/p50"] == 0.0
    assert figures["age/p90"] == figures["age/p99"] == 7.0
    assert figures["age/mean"] == np.mean(ages)
    assert (figures["age/max"], figures["tokens/trained"]) == (7.0, len(ages))


def sample_of(versions: list[int]) -> TrainingSample:
    """Return a prompt of one token and an answer that these versions sampled."""
    zeros = np.zeros(len(versions) + 1, np.int32)
    mask = np.arange(len(zeros)) > 0
    return TrainingSample(
        task_id="t",
        sample=0,
        reward=1.0,
        token_ids=zeros,
        mask=mask,
        behaviour=zeros.astype(np.float32),
        spans=spans_of(mask, versions=np.array([-1, *versions])),
    )


@given(
    st.lists(
        st.lists(st.integers(0, 40), min_size=1, max_size=30).map(sorted), min_size=1, max_size=6
    )
)
def test_the_spread_of_ages_is_that_of_all_tokens(versions: list[list[int]]) -> None:
    """Kills: ranks rounded down; versions of one sample alone; ages of tokens that do not train."""
    rows = [CreditedSample(sample_of(own), np.ones(len(own) + 1)) for own in versions]
    group = TrainingGroup("t", tuple(row.sample for row in rows))
    figures = batch_metrics([group], rows, rows, failed=0, version=40)
    ages = 40 - np.concatenate([np.array(own) for own in versions])
    wanted = np.percentile(ages, (50, 90, 99), method="inverted_cdf")
    assert [figures[f"age/p{percent}"] for percent in (50, 90, 99)] == wanted.tolist()
    assert figures["age/mean"] == ages.mean()
    assert (figures["age/max"], figures["tokens/trained"]) == (ages.max(), len(ages))


def test_masked_and_rejected_tokens_are_not_active() -> None:
    section = LearnSection(correction=MaskedCorrection(low=0.9, high=1.1))
    figures = PolicyTrainer(model_of(), section, seed=0).step(trees_of(gap=1.0))
    assert 0 < figures["correction/zero_fraction"] < 1
    expected = 1 - figures["correction/zero_fraction"]
    assert figures["ratio/active_fraction"] == pytest.approx(expected)
    assert figures["ratio/clip_fraction"] == 0.0
    bounds = DivergenceRejection(lower=0.9, upper=1.1)
    section = LearnSection(correction=NoCorrection(), rejection=(bounds,))
    figures = PolicyTrainer(model_of(), section, seed=0).step(trees_of(gap=1.0))
    assert 0 < figures["rejection/fraction"] < 1
    expected = 1 - figures["rejection/fraction"]
    assert figures["ratio/active_fraction"] == pytest.approx(expected)
