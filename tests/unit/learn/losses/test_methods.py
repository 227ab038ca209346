"""The policy losses besides PPO's, token by token and through the trainer.

Mutants applied and seen caught:

- aepo: slope of the upper bound dropped, or that of the ratio; bounds swapped; no lower bound; no
  dual clip: token table. The worse of two turned into the better; dual clip for all signs
- gspo: sum for mean; off-mask values or counts in the mean; empty segments; turns ignored; gradient
  through all tokens of a segment; a ratio per token; ceiling of 20: token table, segment tests
- cispo, reinforce: ratio not detached; not bounded; bounds swapped; sign. sapo: temperatures
  swapped; not divided by; gate not centred on 1. All: `clipped` where there is no advantage
- m2po: harmless tokens counted; the first token's sign for all; tokens without weight; proximal for
  behaviour, in plan and in loss; cut by single squares, of the mask too; threshold on a token; cut
  over all tokens; floors swapped; sign of the log-ratio dropped; smallest token not kept
- bapo: sides of a bound swapped; no bound in counting; ratio inverted; weights dropped; order of
  the bounds; target, steps and dual clip not read; bounds on their grid; no skip; first bounds kept
- settle: weights, rejections and samples' weights not given; a plan per micro-batch
"""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learn import AdamWSection, LearnSection
from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.config.learning.loss import (
    AepoLoss,
    BapoLoss,
    CispoLoss,
    GspoLoss,
    LossSection,
    M2poLoss,
    PpoClipLoss,
    ReinforceLoss,
    SapoLoss,
    aggregation_of,
)
from agentrl.config.learning.proximal import CurrentProximal
from agentrl.learn.aggregate import LossDenominators, aggregate
from agentrl.learn.correction import PolicyMismatch
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.loss import LossFunction, PlannedLoss, PolicyTokens, SettledLoss, TokenLoss
from agentrl.learn.losses import METHODS
from agentrl.learn.losses.aepo import aepo
from agentrl.learn.losses.bapo import BapoObjective, ClipBounds, balance
from agentrl.learn.losses.gspo import gspo, segment_means
from agentrl.learn.losses.m2po import exact_cut, mask_cut, token_cut
from agentrl.learn.losses.ppo_clip import ppo_clip
from agentrl.learn.methods import LearnMethods
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.update import PolicyGradient
from tests.support.learning import (
    all_of,
    assert_close,
    block,
    gradients,
    loss_of,
    model_of,
    policy_gradient,
    policy_tokens,
    rows_of,
    scored_by,
    trees_of,
)

LOSSES: list[LossSection] = [
    PpoClipLoss(),
    AepoLoss(),
    GspoLoss(),
    GspoLoss(level="turn"),
    CispoLoss(),
    SapoLoss(),
    M2poLoss(),
    M2poLoss(form="mask"),
    M2poLoss(cut="token"),
    BapoLoss(),
    BapoLoss(counting="value"),
    ReinforceLoss(),
]
"""Every method of the slot, and every branch of one."""


def settled(section: LossSection, tokens: PolicyTokens) -> LossFunction:
    """Return the loss of a section; one that plans takes these tokens for its whole step."""
    loss = loss_of(section)
    if isinstance(loss, PlannedLoss):
        return loss.plan(tokens, tokens.mask.float()).loss
    return loss


def slopes(section: LossSection, tokens: PolicyTokens) -> tuple[TokenLoss, Tensor]:
    """Return the losses and d loss / d log-prob of each token, for a sum of losses."""
    logprobs = tokens.logprobs.clone().requires_grad_()
    parts = {name: getattr(tokens, name) for name in ("proximal", "behaviour", "turns")}
    found = settled(section, tokens)(
        PolicyTokens(logprobs=logprobs, advantages=tokens.advantages, mask=tokens.mask, **parts)
    )
    found.losses.sum().backward()
    assert logprobs.grad is not None
    return found, logprobs.grad


def token(section: LossSection, r: float, advantage: float) -> tuple[float, float, bool]:
    """Return the loss of one token, its slope and whether it was clipped."""
    tokens = policy_tokens(block([math.log(r)]), block([advantage]))
    found, slope = slopes(section, tokens)
    return found.losses.item(), slope.item(), bool(found.clipped.item())


def test_every_method_of_the_slot_is_tried_here() -> None:
    assert {type(section) for section in LOSSES} == {method.section for method in METHODS}


def sapo_slope(r: float, advantage: float, temperature: float) -> float:
    gate = 1 / (1 + math.exp(-temperature * (r - 1)))
    return -advantage * 4 * gate * (1 - gate) * r


# section, ratio, advantage -> loss, d loss / d log-prob, clipped.
TOKENS: list[tuple[LossSection, float, float, float, float, bool]] = [
    (AepoLoss(), 1.5, 1.0, -1.2, -1.2, True),
    (AepoLoss(), 0.7, -1.0, 0.8, 0.0, True),
    (AepoLoss(), 1.5, -1.0, 1.5, 1.5, False),
    (AepoLoss(), 4.0, -1.0, 3.0, 0.0, True),
    (AepoLoss(), 0.5, 1.0, -0.5, -0.5, False),
    (AepoLoss(), 1.1, -2.0, 2.2, 2.2, False),
    (AepoLoss(clip_low=0.1, clip_high=0.3, dual_clip=None), 1.5, 2.0, -2.6, -2.6, True),
    (AepoLoss(clip_low=0.1, clip_high=0.3, dual_clip=None), 0.7, -1.0, 0.9, 0.0, True),
    (AepoLoss(clip_low=0.1, clip_high=0.3, dual_clip=None), 4.0, -1.0, 4.0, 4.0, False),
    (AepoLoss(clip_low=0.1, clip_high=0.3, dual_clip=None), 1.2, -1.0, 1.2, 1.2, False),
    (CispoLoss(clip_high=0.28), 2.0, 1.0, -1.28 * math.log(2), -1.28, True),
    (CispoLoss(clip_high=0.28), 2.0, -1.0, 1.28 * math.log(2), 1.28, True),
    (CispoLoss(), 0.01, -1.0, 0.01 * math.log(0.01), 0.01, False),
    (CispoLoss(clip_low=0.2), 0.5, -1.0, 0.8 * math.log(0.5), 0.8, True),
    (CispoLoss(), 9.0, 1.0, -5 * math.log(9), -5.0, True),
    (SapoLoss(), 1.0, 2.0, -4.0, -2.0, False),
    (SapoLoss(), 1.0, -1.0, 2 / 1.05, 1.0, False),
    (SapoLoss(), 1.5, 1.0, -4 / (1 + math.exp(-0.5)), sapo_slope(1.5, 1.0, 1.0), False),
    (
        SapoLoss(temperature_positive=3.0, temperature_negative=2.0),
        1.5,
        -1.0,
        2 / (1 + math.exp(-1.0)),
        sapo_slope(1.5, -1.0, 2.0),
        False,
    ),
    (GspoLoss(), 1.1, 1.0, -1.0004, 0.0, True),
    (GspoLoss(), 1.1, -1.0, 1.1, 1.1, False),
    (GspoLoss(clip_low=0.1, clip_high=0.28), 1.5, 1.0, -1.28, 0.0, True),
    (GspoLoss(clip_low=0.1, clip_high=0.28), 0.5, -1.0, 0.9, 0.0, True),
    (GspoLoss(clip_low=0.1, clip_high=0.28), 1.2, 2.0, -2.4, -2.4, False),
    (ReinforceLoss(), 1.5, 2.0, -2 * math.log(1.5), -2.0, False),
    # The second moment of one token is its own: log 1.1 is within the budget, log 2 is not.
    (M2poLoss(), 1.1, 1.0, -1.1, -1.1, False),
    (M2poLoss(), 2.0, 1.0, -math.exp(0.2), 0.0, True),
    (M2poLoss(), 0.5, -1.0, math.exp(-0.2), 0.0, True),
    (M2poLoss(), 2.0, -1.0, 2.0, 2.0, False),  # on its way back to 1
    (M2poLoss(least_high=0.5), 2.0, 1.0, -1.5, 0.0, True),
    (M2poLoss(least_low=0.3), 0.5, -1.0, 0.7, 0.0, True),
    (BapoLoss(), 1.1, 1.0, -1.1, -1.1, False),
    # No positive token: what the bounds would say is nothing.
    (BapoLoss(), 1.1, -1.0, 0.0, 0.0, True),
]


@pytest.mark.parametrize(("section", "r", "advantage", "loss", "slope", "clipped"), TOKENS)
def test_loss_and_gradient_of_a_token_golden(
    section: LossSection, r: float, advantage: float, loss: float, slope: float, clipped: bool
) -> None:
    assert token(section, r, advantage) == (
        pytest.approx(loss, rel=1e-5),
        pytest.approx(slope, rel=1e-5, abs=1e-7),
        clipped,
    )


@given(st.floats(-3, 3), st.floats(-2, 2))
def test_aepo_has_the_value_of_ppo_and_the_gradient_of_the_paper(log: float, a: float) -> None:
    logprobs = block([log]).requires_grad_()
    found = aepo(logprobs, block([a]))
    found.losses.sum().backward()
    assert torch.equal(found.losses, ppo_clip(block([log]), block([a])).losses)
    r = math.exp(log)
    if min(abs(r - bound) for bound in (0.8, 1.2, 3.0)) < 1e-5:
        return
    factor = min(r, 1.2) if a > 0 else r * (0.8 < r < 3.0)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-factor * a, rel=1e-5, abs=1e-30)


@given(
    st.sampled_from(LOSSES),
    st.lists(st.tuples(st.floats(-30, 30), st.floats(-2, 2)), min_size=1, max_size=6),
)
def test_without_advantage_there_is_no_loss_and_no_gradient_and_all_is_finite(
    section: LossSection, values: list[tuple[float, float]]
) -> None:
    logs, advantages = block([v[0] for v in values]), block([v[1] for v in values])
    advantages[0, 0] = 0.0
    found, slope = slopes(section, policy_tokens(logs, advantages, behaviour=-logs / 9))
    assert found.losses[0, 0] == 0.0
    assert slope[0, 0] == 0.0
    assert not found.clipped[0, 0]
    assert found.losses.isfinite().all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("section", LOSSES)
def test_on_policy_every_loss_is_the_policy_gradient(section: LossSection) -> None:
    advantages = block([1.0, -2.0], [0.5, 0.25])
    _, slope = slopes(section, policy_tokens(torch.zeros(2, 2), advantages))
    torch.testing.assert_close(slope, -advantages)


# Two turns; the place off the mask is no part of either.
GSPO_LOGS = block([0.1, -0.05, 0.25, math.nan, 0.3, 0.1])
GSPO_MASK = torch.tensor([[True, True, True, False, True, True]])
GSPO_TURNS = torch.tensor([[0, 0, 0, 0, 1, 1]])


def test_the_ratio_of_a_sequence_is_the_geometric_mean() -> None:
    logs = block([0.1, -0.05, 0.25])
    found = gspo(logs, block([-1.0] * 3), all_of(logs), torch.zeros(1, 3, dtype=torch.int64))
    assert found.losses.tolist()[0] == pytest.approx([1.105171] * 3, rel=1e-6)


def test_the_ratio_of_a_turn_is_the_geometric_mean_of_its_tokens() -> None:
    means = segment_means(GSPO_LOGS, GSPO_MASK, GSPO_TURNS)
    assert means.tolist()[0] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.2, 0.2])
    whole = segment_means(GSPO_LOGS, GSPO_MASK, torch.zeros_like(GSPO_TURNS))
    assert whole.tolist()[0] == pytest.approx([0.14] * 6)
    empty = segment_means(GSPO_LOGS, torch.zeros_like(GSPO_MASK), GSPO_TURNS)
    assert not empty.any()


@pytest.mark.parametrize(
    ("level", "ratios"), [("sequence", [0.14] * 5), ("turn", [0.1] * 3 + [0.2] * 2)]
)
def test_gspo_gradient_is_the_segment_ratio_over_the_length(
    level: Literal["sequence", "turn"], ratios: list[float]
) -> None:
    section = GspoLoss(level=level, clip_low=0.5, clip_high=0.5)
    logs = torch.where(GSPO_MASK, GSPO_LOGS, 0.0).requires_grad_()
    credit = block([1.0, 1.0, 1.0, 0.0, -2.0, -2.0])
    tokens = policy_tokens(logs, credit, GSPO_MASK, turns=GSPO_TURNS)
    loss = loss_of(section)
    assert not isinstance(loss, PlannedLoss)
    total = aggregate(
        loss(tokens).losses, GSPO_MASK, how=aggregation_of(section), counts=LossDenominators(5, 1.0)
    )
    total.backward()
    assert logs.grad is not None
    wanted = [-a * math.exp(x) / 5 for a, x in zip([1, 1, 1, -2, -2], ratios, strict=True)]
    assert logs.grad[GSPO_MASK].tolist() == pytest.approx(wanted, rel=1e-5)


def test_gspo_clips_a_turn_and_leaves_the_other() -> None:
    tokens = policy_tokens(
        block([1.0, 0.0, 0.01]), block([1.0] * 3), turns=torch.tensor([[0, 0, 1]])
    )
    _, slope = slopes(GspoLoss(level="turn", clip_high=0.1), tokens)
    assert slope.tolist()[0] == pytest.approx([0.0, 0.0, -math.exp(0.01)], rel=1e-5)


def test_gspo_log_ratios_are_cut_at_ten() -> None:
    loss, slope, _ = token(GspoLoss(), math.exp(15), -1.0)
    assert (loss, slope) == (pytest.approx(math.exp(10), rel=1e-5), 0.0)


def squares(*deltas: float) -> Tensor:
    return torch.tensor(deltas, dtype=torch.float64).square()


DELTAS = (0.1, 0.2, 0.3, 0.9)


def test_m2po_cuts_golden() -> None:
    assert exact_cut(squares(*DELTAS), budget=0.04) == pytest.approx(0.234521, abs=1e-6)
    assert token_cut(squares(*DELTAS), budget=0.04) == pytest.approx(0.2)
    between = math.sqrt((0.04 + 0.09) / 2)
    assert mask_cut(squares(*DELTAS), budget=0.04) == pytest.approx(between)


@pytest.mark.parametrize("cut", [exact_cut, token_cut, mask_cut])
def test_m2po_has_no_bound_without_tokens_or_within_the_budget(cut: Any) -> None:
    assert cut(squares(), budget=0.04) == math.inf
    assert cut(squares(0.1, 0.19), budget=0.04) == math.inf
    assert cut(squares(0.9), budget=0.04) == (math.inf if cut is mask_cut else pytest.approx(0.2))


@given(
    st.lists(st.floats(0.01, 3), min_size=1, max_size=12),
    st.floats(0.001, 1),
)
def test_m2po_cuts_spend_the_budget_and_no_more(deltas: list[float], budget: float) -> None:
    seen = squares(*deltas)
    exact, by_token = exact_cut(seen, budget=budget), token_cut(seen, budget=budget)
    if exact == math.inf:
        assert by_token == math.inf
        assert seen.mean() <= budget * (1 + 1e-9)
    else:
        assert seen.clamp(max=exact**2).mean().item() == pytest.approx(budget)
        assert by_token <= exact
    kept = seen[seen.sqrt() <= mask_cut(seen, budget=budget)]
    assert len(kept)
    # More than the smallest are kept only within the budget, and one more would break it.
    assert kept.mean() < budget or kept.max() == seen.min()
    beyond = seen.sort().values[len(kept) :]
    if len(beyond):
        more = beyond[beyond == beyond[0]]
        assert torch.cat([kept, more]).mean() >= budget * (1 - 1e-9)


def planned(
    section: LossSection, tokens: PolicyTokens, weights: Tensor | None = None
) -> SettledLoss:
    loss = loss_of(section)
    assert isinstance(loss, PlannedLoss)
    return loss.plan(tokens, tokens.mask.float() if weights is None else weights)


def test_m2po_clip_bounds_by_the_harmful_tokens_golden() -> None:
    logs = block([*DELTAS, -0.7, 5.0])
    tokens = policy_tokens(logs, block([1.0] * 5 + [0.0]))
    found = planned(M2poLoss(cut="token"), tokens)
    assert found.figures == {"m2po/cut": pytest.approx(0.2, abs=1e-4)}
    # A little beyond the token it is of, which so keeps its gradient however it is rounded.
    assert found.figures["m2po/cut"] > 0.2 + 5e-6
    losses = found.loss(tokens).losses
    wanted = [math.exp(0.1), 1.221403, 1.221403, 1.221403, math.exp(-0.7), 0.0]
    assert losses.tolist()[0] == pytest.approx([-x for x in wanted], rel=1e-4)
    assert planned(M2poLoss(), tokens).figures["m2po/cut"] == pytest.approx(0.234521, abs=1e-5)


def test_m2po_signs_are_those_of_each_token() -> None:
    # The first token's sign would make the second harmful and the third harmless.
    tokens = policy_tokens(block([0.1, 0.9, -0.9]), block([1.0, -1.0, -1.0]))
    cut = math.sqrt(2 * 0.04 - 0.01)
    assert planned(M2poLoss(), tokens).figures == {"m2po/cut": pytest.approx(cut, abs=1e-5)}


def test_m2po_mask_leaves_out_the_furthest_tokens_whatever_their_sign() -> None:
    tokens = policy_tokens(block([0.1, -0.2, 0.3, -0.9]), block([1.0, -1.0, 1.0, 1.0]))
    found, slope = slopes(M2poLoss(form="mask"), tokens)
    assert found.clipped.tolist() == [[False, False, True, True]]
    assert slope.tolist()[0] == pytest.approx([-math.exp(0.1), math.exp(-0.2), 0, 0], rel=1e-5)


@pytest.mark.parametrize("form", ["clip", "mask"])
def test_m2po_counts_no_token_without_weight(form: Literal["clip", "mask"]) -> None:
    tokens = policy_tokens(block([0.1, 0.2, 0.3, 0.9]), block([1.0] * 4))
    without = planned(M2poLoss(form=form), tokens, block([1.0, 1.0, 1.0, 0.0]))
    alone = policy_tokens(block([0.1, 0.2, 0.3]), block([1.0] * 3))
    assert without.figures == planned(M2poLoss(form=form), alone).figures


def test_m2po_measures_against_the_behaviour_policy() -> None:
    logs = block([0.5])
    tokens = policy_tokens(logs, block([1.0]), proximal=logs, behaviour=block([0.2]))
    found = planned(M2poLoss(), tokens)
    assert found.figures == {"m2po/cut": pytest.approx(0.2)}
    assert found.loss(tokens).losses.item() == pytest.approx(-math.exp(0.2))


RATIOS, CREDIT = (1.5, 0.62, 0.9), (1.0, -1.0, -1.0)
BAPO = BapoLoss(low=(0.6, 0.8), high=(1.2, 2.0))


@pytest.mark.parametrize(
    ("counting", "bounds", "expected"),
    [
        ("value", (0.6, 1.2), 0.7895),
        ("value", (0.8, 1.2), 0.7059),
        ("value", (0.8, 2.0), 0.8824),
        ("gradient", (0.6, 1.2), 0.0),
        ("gradient", (0.8, 1.2), 0.0),
        ("gradient", (0.8, 1.500001), 1.6667),
    ],
)
def test_bapo_balance_golden(
    counting: Literal["value", "gradient"], bounds: tuple[float, float], expected: float
) -> None:
    ratios, credit = torch.tensor(RATIOS), torch.tensor(CREDIT)
    found = balance(ratios, credit, ClipBounds(*bounds), counting=counting)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("counting", "high"), [("value", 2.0), ("gradient", 1.5)])
def test_bapo_bounds_golden(counting: Literal["value", "gradient"], high: float) -> None:
    tokens = policy_tokens(block(RATIOS).log(), block(CREDIT))
    found = planned(BAPO.model_copy(update={"counting": counting}), tokens)
    assert found.figures == pytest.approx({"bapo/low": 0.8, "bapo/high": high}, rel=1e-5)
    losses = found.loss(tokens)
    assert losses.losses.tolist()[0] == pytest.approx([-1.5, 0.8, 0.9], rel=1e-5)
    assert losses.clipped.tolist() == [[False, True, False]]


def bounds_of(tokens: PolicyTokens, weights: Tensor | None = None, **knobs: Any) -> list[float]:
    return list(planned(BAPO.model_copy(update=knobs), tokens, weights).figures.values())


def test_every_knob_of_bapo_reaches_the_bounds() -> None:
    tokens = policy_tokens(block(RATIOS).log(), block(CREDIT))
    assert bounds_of(tokens, step_high=0.2) == pytest.approx([0.8, 1.6], rel=1e-5)
    # With a target nobody has to reach, the first bounds do.
    assert bounds_of(tokens, target=1e-9, counting="value") == pytest.approx([0.6, 1.2], rel=1e-5)
    assert bounds_of(tokens, target=1.7) == pytest.approx([0.8, 2.0], rel=1e-5)
    # The token of ratio 0.62 weighs enough to be left out first: the second low bound does that.
    heavy = policy_tokens(block([1.1, 0.62, 0.9]).log(), block([1.0, -1.0, -1.0]))
    assert bounds_of(heavy) == pytest.approx([0.65, 1.2], rel=1e-5)
    assert bounds_of(heavy, step_low=0.15) == pytest.approx([0.75, 1.2], rel=1e-5)
    assert bounds_of(heavy, weights=block([2.0, 1.0, 1.0])) == pytest.approx([0.6, 1.2], rel=1e-5)


def test_bapo_has_a_dual_clip() -> None:
    tokens = policy_tokens(block([4.0, 1.0]).log(), block([-1.0, 9.0]))
    for dual_clip, expected in ((3.0, 3.0), (2.0, 2.0), (None, 4.0)):
        found, _ = slopes(BapoLoss(dual_clip=dual_clip), tokens)
        assert found.losses[0, 0].item() == pytest.approx(expected, rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=9),
    st.sampled_from(["gradient", "value"]),
)
def test_bapo_stops_at_the_first_bounds_that_reach_the_target(
    values: list[tuple[float, float]], counting: Literal["value", "gradient"]
) -> None:
    method = BapoObjective(counting=counting)
    ratios = torch.tensor([v[0] for v in values]).double().exp()
    credit = torch.tensor([v[1] for v in values]).double()
    found = method.bounds(ratios, credit)
    assert 0.6 - 1e-5 <= found.low <= 0.9
    assert 1.2 <= found.high <= 3.0 + 1e-5
    # The upper bound moves only when the lower one has reached its most.
    assert found.high < 1.21 or found.low > 0.89
    if found.high < 2.99:
        assert balance(ratios, credit, found, counting=counting) >= 1.0


def rows_apart(seed: int = 0) -> list[CreditedSample]:
    """Return rows whose behaviour and proximal log-probs differ from the policy's own."""
    random = np.random.default_rng(seed)
    found = scored_by(model_of(), rows_of(trees_of(2, seed=seed)))
    for row in found:
        assert row.sample.proximal is not None
        noise = random.standard_normal((2, len(row.sample.mask)))
        row.sample.proximal[:] += 0.2 * noise[0]
        row.sample.behaviour[:] = row.sample.proximal + 0.2 * noise[1]
    return found


@pytest.mark.parametrize("section", LOSSES)
def test_micro_batching_never_changes_the_gradient_of_a_loss(section: LossSection) -> None:
    model, rows = model_of(), rows_apart()
    config = LearnSection.model_construct(loss=section, correction=NoCorrection())
    whole = gradients(model, rows, config, limit_tokens=10**6)
    for limit in (24, 60):
        assert_close(gradients(model, rows, config, limit_tokens=limit), whole)


def test_a_planned_loss_knows_what_each_token_will_be_multiplied_by() -> None:
    rows = [
        replace(row, sample=replace(row.sample, weights=0.5 * row.mask)) for row in rows_apart()
    ]
    seen: list[tuple[PolicyTokens, Tensor]] = []

    def plan(tokens: PolicyTokens, weights: Tensor) -> SettledLoss:
        seen.append((tokens, weights))
        return SettledLoss(settled(ReinforceLoss(), tokens))

    def below(tokens: PolicyMismatch) -> Tensor:
        return tokens.gaps < 0.2

    config = LearnSection(correction=TruncatedCorrection(cap=1.1))
    policy = PolicyGradient(
        config,
        methods=replace(
            LearnMethods.from_config(config), loss=PlannedLoss(plan), rejections=(below,)
        ),
        scorer=LogprobScorer(model_of(), PaddedLayout(40), 1.0, head_at_positions=True),
    )
    policy.settle(rows, version=0)
    ((tokens, weights),) = seen
    gaps = tokens.proximal - tokens.behaviour
    wanted = torch.where(tokens.mask & (gaps < 0.2), 0.5 * gaps.exp().clamp(max=1.1), 0.0)
    torch.testing.assert_close(weights, wanted)
    assert (gaps > 0.2).any()
    assert not tokens.logprobs.requires_grad


@pytest.mark.parametrize("section", [ReinforceLoss(), PpoClipLoss()])
def test_anchored_to_the_current_policy_the_gradient_is_the_weighed_policy_gradient(
    section: LossSection,
) -> None:
    model, rows = model_of(), rows_apart()
    config = LearnSection(
        correction=TruncatedCorrection(cap=1.1), proximal=CurrentProximal()
    ).model_copy(update={"loss": section})
    found = gradients(model, rows, config)[:-1]
    # The rows hold log-probs of other weights, as in a later step of a batch; none of them counts.
    assert_close(found, policy_gradient(model, rows, 1.1))


@pytest.mark.parametrize("section", LOSSES)
def test_every_loss_raises_what_pays(section: LossSection) -> None:
    changes = {"loss": section, "epochs": 4, "minibatches": 2}
    config = LearnSection(
        correction=NoCorrection(), optimizer=AdamWSection(learning_rate=0.01)
    ).model_copy(update=changes)
    model, rows = model_of(scale=1.0), rows_of(trees_of(2))

    def credited() -> float:
        scored = [(row, row.sample.proximal) for row in scored_by(model, rows)]
        return sum(
            float((row.advantages * logs)[row.mask].sum())
            for row, logs in scored
            if logs is not None
        )

    before = credited()
    metrics = PolicyTrainer(model, config, seed=0).step(trees_of(2))
    assert credited() > before + 0.1
    assert all(math.isfinite(value) for value in metrics.values())
    if isinstance(section, BapoLoss):
        assert metrics["bapo/high"] > metrics["bapo/low"]
