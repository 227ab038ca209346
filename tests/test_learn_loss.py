"""Loss, aggregation and correction, token by token. Mutants applied by hand and seen caught:

- loss: sign flipped; maximum -> minimum; ratio inverted (exp(-x)); clip removed; clip_low and
  clip_high swapped; dual clip dropped; dual clip for positive advantages too; dual clip with
  maximum; `clipped` without the dual part; log-ratio not clamped: golden table, gradient table
- aggregate: mask dropped; x*mask in place of where (NaN padding); per-micro-batch counts; empty
  sequences counted; sum for mean in seq-mean-token-mean: golden table, split property
- correction: ratio inverted (behaviour / proximal); cap dropped; min -> max; sequence without the
  sum; clamp before the sum; non-finite weight 0; not detached: golden cases
- gap: ESS not squared, k1 and k3 swapped, max of signed gaps, fractions swapped: golden metrics
"""

import math
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.config.learning.loss import PpoClipLoss
from agentrl.config.section import Section
from agentrl.learn.aggregate import Aggregation, Counts, aggregate
from agentrl.learn.correction import CorrectionFunction, PlannedCorrection, Weights, log_ratio
from agentrl.learn.corrections.truncated import (
    sequence_truncated,
    token_truncated,
    uncorrected,
)
from agentrl.learn.gap import gap_metrics, observe_gap
from agentrl.learn.loss import PlannedLoss
from agentrl.learn.losses.ppo_clip import ppo_clip
from agentrl.learn.methods import correction_of, loss_of
from agentrl.learn.tally import Tally
from tests.learning import all_of, block, mismatch, policy_tokens


def row(*values: float) -> Tensor:
    """Return one sequence."""
    return block(values)


# ratio r, advantage A -> loss, d loss / d log-prob, clipped; clip 0.2 / 0.28, dual clip 3
PPO = [
    (1.0, 1.0, -1.0, -1.0, False),
    (1.0, -2.0, 2.0, 2.0, False),
    (1.1, 1.0, -1.1, -1.1, False),
    (1.5, 1.0, -1.28, 0.0, True),  # earned enough: 1 + clip_high
    (0.5, 1.0, -0.5, -0.5, False),  # a drop is never clipped for positive advantages
    (0.5, -1.0, 0.8, 0.0, True),  # 1 - clip_low
    (1.5, -1.0, 1.5, 1.5, False),  # a rise is never clipped for negative ones, but for
    (4.0, -1.0, 3.0, 0.0, True),  # the dual clip, at -A x 3
    (4.0, 1.0, -1.28, 0.0, True),
    (1.5, 0.0, 0.0, 0.0, False),
]


@pytest.mark.parametrize(("r", "advantage", "loss", "slope", "clipped"), PPO)
def test_ppo_clip_golden(
    r: float, advantage: float, loss: float, slope: float, clipped: bool
) -> None:
    logprobs = row(math.log(r)).requires_grad_()
    found = ppo_clip(logprobs, row(advantage), clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    found.losses.sum().backward()
    assert found.losses.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope, abs=1e-6)
    assert found.clipped.item() is clipped


def test_without_dual_clip_a_negative_advantage_has_no_bound() -> None:
    found = ppo_clip(row(math.log(4)), row(-1.0), dual_clip=None)
    assert found.losses.item() == pytest.approx(4.0, rel=1e-6)
    assert not found.clipped.item()


@pytest.mark.parametrize(("log", "bound"), [(50.0, 20.0), (-50.0, -20.0)])
def test_log_ratios_are_cut_at_twenty(log: float, bound: float) -> None:
    found = ppo_clip(row(log), row(-1.0), clip_low=1.0, clip_high=1e9, dual_clip=None)
    assert found.losses.item() == pytest.approx(math.exp(bound), rel=1e-5)


def test_every_knob_of_the_loss_section_reaches_the_formula() -> None:
    section = PpoClipLoss(clip_low=0.1, clip_high=0.3, dual_clip=2.0)
    proximal = row(-1.0, -1.0, -1.0)
    tokens = policy_tokens(
        proximal + row(math.log(5), math.log(0.5), math.log(5)),
        row(1.0, -1.0, -1.0),
        proximal=proximal,
    )
    loss = loss_of(section)
    assert not isinstance(loss, PlannedLoss)
    found = loss(tokens).losses
    assert found.tolist()[0] == pytest.approx([-1.3, 0.9, 2.0], rel=1e-6)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_the_clipped_loss_is_never_below_the_unclipped_one_without_dual_clip(
    log: float, advantage: float
) -> None:
    found = ppo_clip(row(log), row(advantage), dual_clip=None).losses.item()
    assert found >= -advantage * math.exp(log) - 1e-4


# Masks and losses of the specification; what stands off the mask is poison.
LOSSES = torch.tensor([[1.0, 3.0], [5.0, math.nan], [math.inf, -math.inf]])
MASK = torch.tensor([[True, True], [True, False], [False, False]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [("token-mean", 3.0), ("seq-mean-token-mean", 3.5), ("seq-mean-token-sum", 4.5)],
)
def test_aggregation_golden(how: Aggregation, expected: float) -> None:
    counts = Counts.of([2, 1, 0])
    assert counts == Counts(tokens=3, sequences=2)
    assert aggregate(LOSSES, MASK, how=how, counts=counts).item() == pytest.approx(expected)


@pytest.mark.parametrize("how", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_rejected_tokens_stay_in_the_denominator(how: Aggregation) -> None:
    kept = torch.tensor([[0.0, 3.0], [5.0, 0.0], [0.0, 0.0]])  # the loss of 1 was rejected
    expected = {"token-mean": 8 / 3, "seq-mean-token-mean": 3.25, "seq-mean-token-sum": 4.0}
    found = aggregate(kept, MASK, how=how, counts=Counts.of([2, 1, 0])).item()
    assert found == pytest.approx(expected[how])


@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=6),
    st.sampled_from(["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]),
    st.integers(1, 5),
)
def test_shares_of_micro_batches_add_up(
    masks: list[list[bool]], how: Aggregation, cut: int
) -> None:
    mask = torch.tensor(masks)
    losses = torch.linspace(-2, 3, mask.numel()).reshape(mask.shape)
    counts = Counts.of(mask.sum(dim=-1).tolist())
    whole = aggregate(losses, mask, how=how, counts=counts)
    shares = [
        aggregate(losses[part], mask[part], how=how, counts=counts)
        for part in (slice(0, cut), slice(cut, None))
    ]
    assert sum(s.item() for s in shares) == pytest.approx(whole.item(), abs=1e-5)


def correction(section: Section) -> CorrectionFunction:
    """Return the correction of a section that plans nothing."""
    found = correction_of(section)
    assert not isinstance(found, PlannedCorrection)
    return found


RHO = row(2.0, 0.5, 1.0)


@pytest.mark.parametrize(("cap", "expected"), [(2.0, [2.0, 0.5, 1.0]), (1.0, [1.0, 0.5, 1.0])])
def test_token_weights_golden(cap: float, expected: list[float]) -> None:
    weights = token_truncated(mismatch(RHO.log()), cap=cap)
    assert weights.applied.tolist()[0] == pytest.approx(expected, rel=1e-6)
    assert weights.raw.tolist()[0] == pytest.approx([2.0, 0.5, 1.0], rel=1e-6)


def test_sequence_weights_golden() -> None:
    weights = sequence_truncated(mismatch(RHO.log()), cap=2.0)
    assert weights.applied.tolist()[0] == pytest.approx([1.0, 1.0, 1.0], rel=1e-6)
    weights = sequence_truncated(mismatch(row(4.0, 1.5, 1.0).log()), cap=2.0)
    assert weights.applied.tolist()[0] == pytest.approx([2.0] * 3, rel=1e-6)
    assert weights.raw.tolist()[0] == pytest.approx([6.0] * 3, rel=1e-6)


def test_a_sequence_is_summed_before_it_is_cut_and_over_its_mask_only() -> None:
    gaps = row(-25.0, 25.0, math.log(1.5), 9.0)
    mask = torch.tensor([[True, True, True, False]])
    weights = sequence_truncated(mismatch(gaps, mask), cap=2.0)
    # Cut before summing, the two large ones would still cancel; cut at 20 and 25 they would not.
    assert weights.applied.tolist()[0] == pytest.approx([1.5, 1.5, 1.5, 0.0], rel=1e-5)
    uneven = sequence_truncated(mismatch(row(-25.0, 25.5)), cap=2.0)
    assert uneven.applied[0, 0].item() == pytest.approx(math.exp(0.5), rel=1e-5)


def test_token_ratios_are_cut_at_twenty_and_padding_weighs_nothing() -> None:
    mask = torch.tensor([[True, True, False]])
    weights = token_truncated(mismatch(row(50.0, -50.0, 1.0), mask), cap=1e30)
    assert weights.applied.tolist()[0] == pytest.approx(
        [math.exp(20), math.exp(-20), 0.0], rel=1e-5
    )


def test_the_log_ratio_is_proximal_over_behaviour_and_detached() -> None:
    proximal = row(math.log(0.4), -1.0, -1.0, -1.0, math.nan).requires_grad_()
    behaviour = row(math.log(0.2), math.nan, -math.inf, math.inf, 0.0)
    mask = torch.tensor([[True, True, True, True, False]])
    found = log_ratio(proximal, behaviour, mask)
    # A behaviour log-prob that is no number counts as weight 1.
    assert found.tolist()[0] == pytest.approx([math.log(2), 0, 0, 0, 0], abs=1e-6)
    assert not found.requires_grad


@pytest.mark.parametrize(("level", "first"), [("token", 3.0), ("sequence", 1.5)])
def test_every_knob_of_the_correction_section_reaches_the_formula(
    level: Literal["token", "sequence"], first: float
) -> None:
    gaps = row(3.0, 0.5).log()
    weights = correction(TruncatedCorrection(level=level, cap=4.0))(mismatch(gaps))
    assert weights.applied[0, 0].item() == pytest.approx(first, rel=1e-6)
    cut = correction(TruncatedCorrection(level=level, cap=1.25))(mismatch(gaps))
    assert cut.applied[0, 0].item() == pytest.approx(1.25)


def test_no_correction_weighs_every_sampled_token_one() -> None:
    mask = torch.tensor([[True, True, False]])
    weights = correction(NoCorrection())(mismatch(RHO.log(), mask))
    assert weights.applied.tolist() == [[1.0, 1.0, 0.0]]
    assert weights.raw.tolist()[0] == pytest.approx([2.0, 0.5, 0.0])


def observed(gaps: Tensor, behaviour: Tensor, weights: Weights, mask: Tensor) -> dict[str, float]:
    """Return the metrics of one micro-batch."""
    tally = Tally()
    observe_gap(tally, gaps=gaps, behaviour=behaviour, weights=weights, mask=mask)
    return gap_metrics(tally)


def test_gap_metrics_golden() -> None:
    gaps, mask = RHO.log(), all_of(RHO)
    found = observed(gaps, row(-1, -1, -1), token_truncated(mismatch(gaps, mask), cap=1.5), mask)
    assert found == pytest.approx(
        {
            "engine_gap/ess": 0.777778,  # (7/6)^2 / (5.25/3)
            "engine_gap/chi2": 0.75,  # 5.25/3 - 1
            "tis/clipped_fraction": 1 / 3,
            "tis/low_fraction": 1 / 3,  # 0.5 < 1 / 1.5
            "engine_gap/mean_abs": 2 * math.log(2) / 3,
            "engine_gap/max": math.log(2),
            "engine_gap/kl_k1": 0.0,
            "engine_gap/kl": (0.306853 + 0.193147) / 3,  # k3 of 2 and of 0.5
            "engine_gap/nonfinite": 0.0,
        },
        abs=1e-6,
    )


def test_gap_metrics_see_direction_and_missing_numbers() -> None:
    behaviour = row(-2.0, math.nan)
    proximal = row(-2.0 + math.log(2), -5.0)
    mask = all_of(proximal)
    gaps = log_ratio(proximal, behaviour, mask)
    found = observed(gaps, behaviour, uncorrected(mismatch(gaps, mask)), mask)
    assert found["engine_gap/kl_k1"] == pytest.approx(-0.6931 / 2, abs=1e-4)
    assert found["engine_gap/nonfinite"] == 0.5
    assert found["tis/clipped_fraction"] == found["tis/low_fraction"] == 0.0
    gaps = -gaps
    found = observed(gaps, behaviour, uncorrected(mismatch(gaps, mask)), mask)
    assert found["engine_gap/max"] == pytest.approx(0.6931, abs=1e-4)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_the_kl_estimate_is_never_negative_and_ess_is_a_fraction(logs: list[float]) -> None:
    gaps = row(*logs)
    mask = all_of(gaps)
    found = observed(gaps, gaps, token_truncated(mismatch(gaps, mask)), mask)
    assert found["engine_gap/kl"] >= -1e-9
    assert 0 < found["engine_gap/ess"] <= 1 + 1e-6
