"""Loss and aggregation, token by token. Mutants applied by hand and seen caught:

- loss: sign flipped; maximum -> minimum; ratio inverted (exp(-x)); clip removed; clip_low and
  clip_high swapped; dual clip dropped; dual clip for positive advantages too; dual clip with
  maximum; `clipped` without the dual part; log-ratio not clamped: golden table, gradient table
- aggregate: mask dropped; x*mask in place of where (NaN padding); per-micro-batch counts; empty
  sequences counted; sum for mean in seq-mean-token-mean: golden table, split property
"""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learning.loss import Aggregation, PpoClipLoss
from agentrl.learn.aggregate import LossDenominators, aggregate
from agentrl.learn.loss import PlannedLoss
from agentrl.learn.losses.ppo_clip import ppo_clip
from tests.support.learning import block, loss_of, policy_tokens


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
    [
        ("token-mean", 3.0),
        ("token-sum", 9.0),
        ("seq-mean-token-mean", 3.5),
        ("seq-mean-token-sum", 4.5),
        ("seq-mean-token-sum-norm", 2.25),
    ],
)
def test_aggregation_golden(how: Aggregation, expected: float) -> None:
    counts = LossDenominators.from_token_counts([2, 1, 0])
    assert counts == LossDenominators(tokens=3, sequences=2.0)
    found = aggregate(LOSSES, MASK, how=how, counts=counts, horizon_tokens=2).item()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("how", get_args(Aggregation))
def test_contexts_weigh_as_much_as_their_trajectory(how: Aggregation) -> None:
    """A trajectory of one context, and one of three, which is the same numbers in one row."""
    whole = torch.tensor([[1.0, 3.0, 0.0, 2.0], [5.0, 2.0, -1.0, 4.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)
    counts = LossDenominators.from_token_counts([3, 4])
    expected = aggregate(whole, mask, how=how, counts=counts, horizon_tokens=2)
    rows = torch.tensor([[1.0, 3.0, 0.0, 2.0], [5.0, 0, 0, 0], [2.0, -1.0, 0, 0], [4.0, 0, 0, 0]])
    row_mask = torch.tensor(
        [[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool
    )
    shares = torch.tensor([1.0, 0.25, 0.5, 0.25])
    parts = LossDenominators.from_token_counts([3, 1, 2, 1], shares.tolist())
    assert parts == counts
    found = aggregate(rows, row_mask, how=how, counts=parts, horizon_tokens=2, shares=shares)
    assert found.item() == pytest.approx(expected.item())
    # One context alone in an optimiser step is that step's mean.
    lone = LossDenominators.from_token_counts([2], [0.5])
    alone = aggregate(
        rows[2:3], row_mask[2:3], how=how, counts=lone, horizon_tokens=2, shares=shares[2:3]
    )
    assert alone.item() == pytest.approx(
        {
            "token-mean": 0.5,
            "token-sum": 1.0,
            "seq-mean-token-sum": 2.0,
            "seq-mean-token-sum-norm": 1.0,
            "seq-mean-token-mean": 0.5,
        }[how]
    )


@pytest.mark.parametrize("how", get_args(Aggregation))
def test_rejected_tokens_stay_in_the_denominator(how: Aggregation) -> None:
    kept = torch.tensor([[0.0, 3.0], [5.0, 0.0], [0.0, 0.0]])  # the loss of 1 was rejected
    expected = {
        "token-mean": 8 / 3,
        "token-sum": 8.0,
        "seq-mean-token-mean": 3.25,
        "seq-mean-token-sum": 4.0,
        "seq-mean-token-sum-norm": 1.0,
    }
    counts = LossDenominators.from_token_counts([2, 1, 0])
    found = aggregate(kept, MASK, how=how, counts=counts, horizon_tokens=4).item()
    assert found == pytest.approx(expected[how])


@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=6),
    st.sampled_from(get_args(Aggregation)),
    st.integers(1, 5),
)
def test_shares_of_micro_batches_add_up(
    masks: list[list[bool]], how: Aggregation, cut: int
) -> None:
    mask = torch.tensor(masks)
    losses = torch.linspace(-2, 3, mask.numel()).reshape(mask.shape)
    counts = LossDenominators.from_token_counts(mask.sum(dim=-1).tolist())
    whole = aggregate(losses, mask, how=how, counts=counts, horizon_tokens=3)
    shares = [
        aggregate(losses[part], mask[part], how=how, counts=counts, horizon_tokens=3)
        for part in (slice(0, cut), slice(cut, None))
    ]
    assert sum(s.item() for s in shares) == pytest.approx(whole.item(), abs=1e-5)
