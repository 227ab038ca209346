"""Rejections: what is kept, token by token and through the gradient of an optimiser step. Mutants
applied by hand and seen caught: the sign of k1; bounds held against k1 and not the ratio; a lower
bound that is not the inverse of the upper; padding counted; log-ratios cut before they are summed;
a tool token that vetoes; the sign of OPSM.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.learning.rejection import (
    AnyRejection,
    DivergenceRejection,
    OpsmRejection,
    Statistic,
    VetoRejection,
)
from agentrl.errors import ConfigError
from agentrl.learn import rejections
from agentrl.learn.correction import PolicyMismatch
from agentrl.learn.method import bind_method
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.rejections import statistic
from tests.support.learning import (
    assert_close,
    block,
    gradients,
    mismatch,
    model_of,
    rows_of,
    trees_of,
)

EMPTY = torch.zeros(1, 3, dtype=torch.bool)


def kept(section: AnyRejection, tokens: PolicyMismatch) -> list[list[bool]]:
    """Return which tokens a section keeps."""
    return bind_method(rejections.METHODS, section)(tokens).tolist()


def of(*ratios: float) -> PolicyMismatch:
    """Return one sequence with these ratios proximal / behaviour."""
    return mismatch(block(ratios).log())


LOG2 = math.log(2)
K3_OF_2, K3_OF_HALF = 1 - LOG2, LOG2 - 0.5
STATISTICS: list[tuple[Statistic, list[float]]] = [
    ("token_k1", [-LOG2, LOG2, 0]),
    ("token_k2", [LOG2**2 / 2, LOG2**2 / 2, 0]),
    ("token_k3", [K3_OF_2, K3_OF_HALF, 0]),
    ("seq_sum_k1", [0] * 3),
    ("seq_sum_k2", [LOG2**2] * 3),
    ("seq_sum_k3", [0.5] * 3),
    ("seq_mean_k1", [0] * 3),
    ("seq_mean_k2", [LOG2**2 / 3] * 3),
    ("seq_mean_k3", [0.5 / 3] * 3),
    ("seq_max_k2", [LOG2**2 / 2] * 3),
    ("seq_max_k3", [K3_OF_2] * 3),
]


@pytest.mark.parametrize(("name", "expected"), STATISTICS)
def test_statistics_golden(name: Statistic, expected: list[float]) -> None:
    assert statistic(of(2.0, 0.5, 1.0), name).tolist()[0] == pytest.approx(expected, abs=1e-6)
    # Of the specification: k1, k2 and k3 of a ratio of 2.
    published = {"k1": -0.6931, "k2": 0.2402, "k3": 0.3069}
    assert statistic(of(2.0), name).item() == pytest.approx(published[name[-2:]], abs=1e-4)


@pytest.mark.parametrize("name", [name for name, _ in STATISTICS])
def test_statistics_are_of_the_mask_and_zero_without_one(name: Statistic) -> None:
    mask = torch.tensor([[False, True, True, True, False]])
    gaps = block([math.nan, LOG2, -LOG2, 0.0, 9.0])
    parts = (torch.zeros_like(gaps), gaps, mask, mask.long(), mask.long())
    found = statistic(PolicyMismatch(gaps, *parts), name)[mask]
    torch.testing.assert_close(found[None], statistic(of(2.0, 0.5, 1.0), name))
    assert not statistic(mismatch(block([1, 1, 1]), EMPTY), name).any()


def test_a_statistic_is_finite_and_a_product_is_of_all_its_ratios() -> None:
    assert statistic(mismatch(block([90.0])), "token_k3").item() == pytest.approx(math.exp(20))
    # Cut to 20 first, this would be a product of 1 and kept.
    tokens = mismatch(block([-25.0, 20.0]))
    assert statistic(tokens, "seq_sum_k1").tolist() == [[5.0, 5.0]]
    assert kept(DivergenceRejection(statistic="seq_sum_k1"), tokens) == [[False, False]]


BOUNDS: list[tuple[dict[str, Any], list[float], list[bool]]] = [
    # The documented meaning: with 0.5 and 5 a ratio of 4 is kept and one of 0.3 is not.
    ({"lower": 0.5, "upper": 5.0}, [4.0, 0.3, 0.6, 5.1], [True, False, True, False]),
    ({"lower": 0.2, "upper": 2.0}, [4.0, 0.3, 0.6, 1.9], [False, True, True, True]),
    ({"upper": 4.0}, [3.9, 4.1, 0.26, 0.24], [True, False, True, False]),
    ({}, [1.9, 2.1, 0.51, 0.49], [True, False, True, False]),
    ({"statistic": "seq_sum_k1", "lower": 0.5, "upper": 5.0}, [2.0, 2.0], [True, True]),
    ({"statistic": "seq_sum_k1", "lower": 0.5, "upper": 5.0}, [0.5, 0.6], [False, False]),
    ({"statistic": "seq_sum_k1"}, [2.0, 0.5], [True, True]),
    ({"statistic": "seq_sum_k1"}, [1.5, 1.5], [False, False]),
    ({"statistic": "seq_mean_k1"}, [1.0008, 1.0], [True, True]),
    ({"statistic": "seq_mean_k1"}, [1.003, 1.0], [False, False]),
    ({"statistic": "seq_mean_k1"}, [0.997, 1.0], [False, False]),
    ({"statistic": "token_k2"}, [7.0, 8.0, 1 / 7], [True, False, True]),
    ({"statistic": "seq_mean_k2"}, [12.0, 1.0], [True, True]),
    ({"statistic": "seq_mean_k2"}, [20.0, 1.0], [False, False]),
    ({"statistic": "seq_sum_k2"}, [9.0, 1.0], [True, True]),
    ({"statistic": "seq_sum_k2"}, [9.0, 2.0], [False, False]),
    ({"statistic": "seq_max_k2"}, [1.1e-4, 1.0], [True, True]),
    ({"statistic": "seq_max_k2"}, [0.9e-4, 1.0], [False, False]),
    ({"statistic": "seq_mean_k3"}, [1.2, 1.0], [True, True]),
    ({"statistic": "seq_mean_k3"}, [1.3, 1.0], [False, False]),
    ({"statistic": "token_k3", "upper": 0.25}, [2.0, 0.5], [False, True]),
    ({"statistic": "seq_max_k3", "upper": 0.25}, [0.5, 0.5], [True, True]),
    ({"statistic": "seq_max_k3", "upper": 0.25}, [2.0, 0.5], [False, False]),
    ({"statistic": "seq_sum_k3", "upper": 0.25}, [0.5, 0.5], [False, False]),
]


@pytest.mark.parametrize(("knobs", "ratios", "expected"), BOUNDS)
def test_bounds_golden(knobs: dict[str, Any], ratios: list[float], expected: list[bool]) -> None:
    assert kept(DivergenceRejection(**knobs), of(*ratios)) == [expected]


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"statistic": "seq_sum_k3"}, "upper is null, but seq_sum_k3 has no default"),
        ({"statistic": "token_k2", "lower": 0.5}, "token_k2 is bounded only from above"),
        ({"lower": 3.0, "upper": 2.0}, "lower is 3.0 and upper is 2.0"),
        ({"upper": 0.5}, "lower is 2.0 and upper is 0.5.* a single bound must be at least 1"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bind_method(rejections.METHODS, DivergenceRejection(**knobs))


def test_one_impossible_token_vetoes_its_sequence_and_a_tool_token_none() -> None:
    rare = math.log(5e-5)
    mask = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    gaps = block([0.0, rare, 0.0], [0.0, rare, 0.0], [0.0, -rare, math.log(1.1e-4)])
    zeros, none = torch.zeros_like(gaps), mask.long()
    # Not blanked off the mask: what stands there must not count.
    tokens = PolicyMismatch(gaps, zeros, zeros, mask, none, none)
    assert kept(VetoRejection(), tokens) == [[False] * 3, [True] * 3, [True] * 3]
    assert kept(VetoRejection(floor=1e-5), tokens) == [[True] * 3] * 3
    assert kept(VetoRejection(), mismatch(gaps[:1], EMPTY)) == [[True] * 3]


def test_opsm_drops_negative_credit_where_the_policy_has_moved_away() -> None:
    mask = torch.tensor([[True, True, True, False]] * 3)
    drift = block([-3e-4, -1e-4, 0.0, -9.0], [-3e-4, 0.0, 1e-4, -9.0], [3e-4, 0.0, 0.0, 9.0])
    advantages = block([-1.0, 1.0, 0.0, -1.0]).expand_as(drift)
    gaps = block([0.0] * 4, [-6e-4, 0.0, 0.0, 9.0], [-9e-4, 0.0, 0.0, 9.0])
    parts = (drift, advantages, mask, mask.long(), mask.long())
    tokens = PolicyMismatch(gaps, *parts)

    def dropped(**knobs: Any) -> list[bool]:
        found = torch.tensor(kept(OpsmRejection(**knobs), tokens))
        assert found[:, 1:3].all()  # never credit that is not negative
        return (~found[:, 0]).tolist()

    assert dropped() == [True, False, False]  # means of 1.33e-4, 0.67e-4 and -1e-4 nats
    assert dropped(delta=2e-4) == [False, False, False]
    assert dropped(delta=0.0) == [True, True, False]
    assert dropped(anchor="behaviour") == [True, True, True]  # 1.33e-4, 2.67e-4, 2e-4


def lone(rows: list[CreditedSample], index: int, gap: float) -> list[CreditedSample]:
    """Return the rows as if the engine had agreed but for the sampled tokens of one of them."""
    for each in rows:
        each.sample.behaviour[:] = np.nan
    rows[index].sample.behaviour[rows[index].sample.mask] = gap
    return rows


def config_of(**changes: Any) -> LearnSection:
    """Return a config without any correction but rejections."""
    return LearnSection(correction=NoCorrection(), **changes)


@pytest.mark.parametrize("section", [VetoRejection(), DivergenceRejection(statistic="seq_sum_k1")])
def test_what_is_rejected_has_no_gradient_and_stays_in_the_denominator(
    section: AnyRejection,
) -> None:
    model = model_of()
    # A log-prob of 9: the engine was far surer than the trainer can be.
    found = gradients(model, lone(rows_of(trees_of()), 2, 9.0), config_of(rejection=(section,)))
    # The same rows with the credit of that one taken away: nothing else changes.
    rows = rows_of(trees_of())
    without = [CreditedSample(r.sample, r.advantages * (i != 2)) for i, r in enumerate(rows)]
    assert_close(found, gradients(model, without, config_of()))


def test_a_token_trains_if_no_rejection_drops_it() -> None:
    model = model_of()
    two = (VetoRejection(floor=0.15), DivergenceRejection(lower=0.5, upper=3.0))

    def gradient(*sections: AnyRejection) -> Tensor:
        config = config_of(rejection=sections)
        return gradients(model, rows_of(trees_of(gap=1.0)), config)

    both = gradient(*two)
    assert_close(both, gradient(*two[::-1]))
    for other in (gradient(), *map(gradient, two)):
        assert (both - other).norm() > 1e-3


SECTIONS: list[AnyRejection] = [
    *(DivergenceRejection(statistic=name, upper=1.5) for name, _ in STATISTICS),
    VetoRejection(floor=0.2),
    OpsmRejection(anchor="behaviour"),
]


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SECTIONS), st.integers(24, 80), st.integers(0, 99))
def test_micro_batching_never_changes_the_gradient(
    section: AnyRejection, limit: int, seed: int
) -> None:
    model = model_of()
    rows = rows_of(trees_of(2, seed=seed, gap=0.5))
    config = config_of(rejection=(section,))
    whole = gradients(model, rows, config, limit_tokens=10**6)
    found = gradients(model, rows, config, limit_tokens=limit)
    assert (found - whole).norm() <= 2e-6 * max(whole.norm().item(), 1e-3)
