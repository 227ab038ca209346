"""Off-policy weights, token by token and through the gradient of an optimiser step. Mutants applied
by hand and seen caught:

- the ratio inverted; missing numbers as 0; padding that weighs, or counts in a product or a mean
- log-ratios cut before they are summed; a product that is not cut; a mean over the padded width
- cap dropped; floor dropped, raised on padding, or above the cap; IcePop without its weights, as
  truncation, or with 1 / high for low
- normalised by the mean before truncation, of the micro-batch, over tokens for sequences, over
  empty rows, by a mean next to 0; multiplied by it
- the behaviour's floor as a ceiling, or against current / proximal inverted
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import (
    FlooredCorrection,
    Level,
    MaskedCorrection,
    NoCorrection,
    TruncatedCorrection,
)
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError
from agentrl.learn.correction import (
    CorrectionFunction,
    CorrectionWeights,
    PlannedCorrection,
    PolicyMismatch,
    log_ratio,
)
from tests.support.learning import (
    assert_close,
    block,
    correction_of,
    gradients,
    mismatch,
    model_of,
    rows_of,
    trees_of,
)


def row(*values: float) -> Tensor:
    """Return one sequence."""
    return block(values)


RHO = row(2.0, 0.5, 1.0)
"""Ratios of the specification: product and geometric mean are 1."""


def weights(
    section: ConfigSection, tokens: PolicyMismatch, *, step: PolicyMismatch | None = None
) -> CorrectionWeights:
    """Return the weights of a section, in an optimiser step of these tokens or of others."""
    return settled(section, step or tokens)(tokens)


def settled(section: ConfigSection, step: PolicyMismatch) -> CorrectionFunction:
    """Return the correction of a section for an optimiser step."""
    found = correction_of(section)
    return found.plan(step) if isinstance(found, PlannedCorrection) else found


GOLDEN = [
    (TruncatedCorrection(cap=2.0), [2.0, 0.5, 1.0], [2.0, 0.5, 1.0]),
    (TruncatedCorrection(cap=1.0), [2.0, 0.5, 1.0], [1.0, 0.5, 1.0]),
    (TruncatedCorrection(cap=1.5, floor=0.8), [2.0, 0.5, 1.0], [1.5, 0.8, 1.0]),
    (TruncatedCorrection(level="sequence"), [2.0, 0.5, 1.0], [1.0, 1.0, 1.0]),
    (TruncatedCorrection(level="sequence"), [4.0, 1.5, 1.0], [2.0, 2.0, 2.0]),
    (TruncatedCorrection(level="geometric"), [2.0, 0.5, 1.0], [1.0, 1.0, 1.0]),
    (TruncatedCorrection(level="geometric"), [8.0, 0.5, 2.0], [2.0, 2.0, 2.0]),
    (TruncatedCorrection(level="geometric", cap=3.0), [8.0, 1.0], [math.sqrt(8)] * 2),
    (MaskedCorrection(low=0.6, high=1.6), [2.0, 0.5, 1.0], [0.0, 0.0, 1.0]),
    (MaskedCorrection(), [6.0, 0.4, 4.0], [0.0, 0.0, 4.0]),
    (MaskedCorrection(level="sequence"), [6.0, 0.4, 2.0], [4.8, 4.8, 4.8]),
    (MaskedCorrection(level="sequence"), [6.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    (MaskedCorrection(level="geometric", high=1.7), [6.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    (MaskedCorrection(level="geometric"), [8.0, 1.0, 1.0], [2.0, 2.0, 2.0]),
    (FlooredCorrection(), [2.0, 0.5, 1000.0], [2.0, 0.5, 100.0]),
    (FlooredCorrection(limit=1.5), [2.0, 0.5, 1.0], [1.5, 0.5, 1.0]),
    (NoCorrection(), [2.0, 0.5, 1.0], [1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("section", "rho", "expected"), GOLDEN)
def test_weights_golden(section: ConfigSection, rho: list[float], expected: list[float]) -> None:
    found = weights(section, mismatch(row(*rho).log()))
    assert found.applied.tolist()[0] == pytest.approx(expected, rel=1e-5)


# What stands off the mask is poison: padding and tool tokens weigh nothing and count in no mean.
@pytest.mark.parametrize(("section", "rho", "expected"), GOLDEN)
def test_what_is_off_the_mask_weighs_nothing_and_changes_nothing(
    section: ConfigSection, rho: list[float], expected: list[float]
) -> None:
    gaps = row(math.log(7), *[math.log(r) for r in rho], -9.0)
    mask = torch.tensor([[False, *[True] * len(rho), False]])
    poisoned = PolicyMismatch(
        gaps=gaps,
        drift=torch.where(mask, 0.0, 5.0),
        advantages=gaps,
        mask=mask,
        turns=mask.long(),
        ages=mask.long(),
    )
    found = weights(section, poisoned)
    assert found.applied.tolist()[0] == pytest.approx([0.0, *expected, 0.0], rel=1e-5)
    assert not found.raw[~mask].any()


def test_the_raw_ratio_is_kept_beside_what_is_applied() -> None:
    for section in (TruncatedCorrection(cap=1.5), MaskedCorrection(high=1.5), NoCorrection()):
        found = weights(section, mismatch(RHO.log()))
        assert found.raw.tolist()[0] == pytest.approx([2.0, 0.5, 1.0], rel=1e-6)
        assert found.cap == (math.inf if isinstance(section, NoCorrection) else 1.5)


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_a_sequence_is_summed_before_it_is_cut(level: Level) -> None:
    uneven = weights(TruncatedCorrection(level=level), mismatch(row(-25.0, 25.5)))
    expected = 0.5 if level == "sequence" else 0.25
    assert uneven.applied[0, 0].item() == pytest.approx(math.exp(expected), rel=1e-5)


def test_ratios_are_cut_at_twenty() -> None:
    for level in ("token", "sequence", "geometric"):
        for log in (50.0, -50.0):
            found = weights(TruncatedCorrection(level=level, cap=1e30), mismatch(row(log)))
            expected = math.exp(math.copysign(20, log))
            assert found.applied.item() == pytest.approx(expected, rel=1e-5)


def test_the_log_ratio_is_proximal_over_behaviour_and_detached() -> None:
    proximal = row(math.log(0.4), -1.0, -1.0, -1.0, math.nan).requires_grad_()
    behaviour = row(math.log(0.2), math.nan, -math.inf, math.inf, 0.0)
    mask = torch.tensor([[True, True, True, True, False]])
    found = log_ratio(proximal, behaviour, mask)
    # A behaviour log-prob that is no number counts as weight 1.
    assert found.tolist()[0] == pytest.approx([math.log(2), 0, 0, 0, 0], abs=1e-6)
    assert not found.requires_grad


def test_the_floor_looks_at_the_current_policy() -> None:
    # current / behaviour is 6 and 0.5; the limit of 3 raises the behaviour of the first only.
    tokens = mismatch(row(2.0, 2.0).log(), drift=row(3.0, 0.25).log())
    found = weights(FlooredCorrection(limit=3.0), tokens).applied
    assert found.tolist()[0] == pytest.approx([1.0, 2.0], rel=1e-6)
    assert (found * tokens.drift.exp()).max().item() == pytest.approx(3.0, rel=1e-6)


STEP = mismatch(block([8.0, 1.0, 1.0], [0.5]).log().nan_to_num(), block([1, 1, 1], [1]).bool())
EMPTY = torch.zeros(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("section", "mean"),
    [
        (TruncatedCorrection(normalise=True), (2 + 1 + 1 + 0.5) / 4),
        (TruncatedCorrection(normalise=True, level="sequence"), (2 + 0.5) / 2),
        (TruncatedCorrection(normalise=True, level="geometric", cap=1.5), (1.5 + 0.5) / 2),
        (MaskedCorrection(normalise=True), (0 + 1 + 1 + 0.5) / 4),
        (MaskedCorrection(normalise=True, level="geometric"), (2 + 0.5) / 2),
    ],
)
def test_normalised_weights_have_mean_one_over_the_step(
    section: TruncatedCorrection | MaskedCorrection, mean: float
) -> None:
    plain = weights(section.model_copy(update={"normalise": False}), STEP)
    found = weights(section, STEP)
    torch.testing.assert_close(found.applied, plain.applied / mean)
    assert torch.equal(found.raw, plain.raw)
    # A sequence without sampled tokens is none, and a micro-batch has the mean of its step.
    wider = mismatch(torch.cat([STEP.gaps, row(9, 9, 9)]), torch.cat([STEP.mask, EMPTY]))
    torch.testing.assert_close(weights(section, wider).applied[:2], found.applied)
    part = mismatch(STEP.gaps[1:], STEP.mask[1:])
    torch.testing.assert_close(weights(section, part, step=STEP).applied, found.applied[1:])


def test_a_mean_of_nothing_normalises_nothing() -> None:
    everything_out = mismatch(row(9.0, 9.0))
    for tokens in (everything_out, mismatch(row(0, 0, 0), EMPTY)):
        for level in ("token", "sequence"):
            section = MaskedCorrection(level=level, normalise=True)
            assert not weights(section, tokens).applied.any()
    # The smallest weight there is, e^-20, is below what is divided by; 0.002 is not.
    tiny = TruncatedCorrection(normalise=True)
    assert weights(tiny, mismatch(row(-50.0))).applied.item() == pytest.approx(math.exp(-20))
    assert weights(tiny, mismatch(row(0.002).log())).applied.item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "section",
    [TruncatedCorrection(floor=2.5), MaskedCorrection(low=6.0), MaskedCorrection(high=0.1)],
)
def test_bounds_that_leave_nothing_are_refused(section: ConfigSection) -> None:
    with pytest.raises(ConfigError, match="no weight lies between them; lower the first"):
        correction_of(section)


SECTIONS: list[dict[str, Any]] = [
    {"name": name, "level": level, "normalise": normalise}
    for name in ("tis", "icepop")
    for level in ("token", "sequence", "geometric")
    for normalise in (False, True)
] + [{"name": "floored", "limit": 3.0}]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SECTIONS), st.integers(24, 80), st.integers(0, 99))
def test_micro_batching_never_changes_the_gradient(
    section: dict[str, Any], limit: int, seed: int
) -> None:
    model = model_of()
    rows = rows_of(trees_of(2, seed=seed, gap=0.5))
    config = LearnSection.model_validate({"correction": section})
    whole = gradients(model, rows, config, limit_tokens=10**6)
    assume(whole.norm() > 0)  # icepop may leave out every sequence
    assert_close(gradients(model, rows, config, limit_tokens=limit), whole)


@pytest.mark.parametrize("section", SECTIONS)
def test_where_behaviour_is_proximal_every_correction_is_plain_ppo(section: dict[str, Any]) -> None:
    model = model_of()
    rows = rows_of(trees_of())
    for each in rows:
        # The engine gave no number, which counts as the trainer's own.
        each.sample.behaviour[:] = np.nan
    config = LearnSection.model_validate({"correction": section})
    plain = LearnSection(correction=NoCorrection())
    assert_close(gradients(model, rows, config), gradients(model, rows, plain))
