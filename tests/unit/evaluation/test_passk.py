"""pass@k and pass^k: golden numbers, unbiasedness, and what they refuse.

Seen caught: the plug-in estimate, c and n - c swapped, k - 1 for k, the complement forgotten; of
pass^k the plug-in, n - c for c, one factor too many.
"""

import math
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.evaluation.scores import pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("passed", "samples", "k", "want"),
    [
        (1, 2, 1, 0.5),
        (1, 2, 2, 1.0),
        (3, 10, 1, 0.3),
        (3, 10, 2, 8 / 15),  # 1 - (7 * 6) / (10 * 9)
        (3, 10, 5, 11 / 12),  # 1 - C(7, 5) / C(10, 5) = 1 - 21 / 252
        (0, 10, 5, 0.0),
        (10, 10, 1, 1.0),
        (6, 10, 5, 1.0),  # four failures cannot fill five picks
    ],
)
def test_golden(passed: int, samples: int, k: int, want: float) -> None:
    assert pass_at_k(passed, samples=samples, k=k) == pytest.approx(want, abs=1e-15)


@given(st.data(), st.integers(1, 8))
def test_is_the_share_of_picks_with_a_pass(data: st.DataObject, samples: int) -> None:
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    picks = [*combinations(range(samples), k)]
    share = Fraction(sum(min(pick) < passed for pick in picks), len(picks))
    assert pass_at_k(passed, samples=samples, k=k) == pytest.approx(float(share), abs=1e-12)


@given(st.integers(1, 30), st.floats(0, 1), st.data())
def test_is_unbiased(samples: int, chance: float, data: st.DataObject) -> None:
    """The plug-in estimate fails this for every 0 < chance < 1 and 1 < k."""
    k = data.draw(st.integers(1, samples))
    expected = sum(
        math.comb(samples, c)
        * chance**c
        * (1 - chance) ** (samples - c)
        * pass_at_k(c, samples=samples, k=k)
        for c in range(samples + 1)
    )
    assert expected == pytest.approx(1 - (1 - chance) ** k, abs=1e-9)


@pytest.mark.parametrize(
    ("passed", "samples", "k", "want"),
    [
        (1, 2, 1, 0.5),
        (1, 2, 2, 0.0),
        (3, 10, 2, 1 / 15),  # C(3, 2) / C(10, 2) = 3 / 45
        (7, 10, 3, 7 / 24),  # C(7, 3) / C(10, 3) = 35 / 120
        (2, 10, 3, 0.0),
        (10, 10, 10, 1.0),
        (0, 4, 1, 0.0),
    ],
)
def test_all_pass_golden(passed: int, samples: int, k: int, want: float) -> None:
    assert pass_hat_k(passed, samples=samples, k=k) == pytest.approx(want, abs=1e-15)


@given(st.integers(1, 30), st.floats(0, 1), st.data())
def test_all_pass_is_unbiased(samples: int, chance: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, samples))
    expected = sum(
        math.comb(samples, c)
        * chance**c
        * (1 - chance) ** (samples - c)
        * pass_hat_k(c, samples=samples, k=k)
        for c in range(samples + 1)
    )
    assert expected == pytest.approx(chance**k, abs=1e-9)


@given(st.integers(1, 30), st.data())
def test_all_pass_mirrors_at_least_one(samples: int, data: st.DataObject) -> None:
    """All k pass exactly where none of them fails: pass@k of the failures, turned round."""
    passed, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    failing = pass_at_k(samples - passed, samples=samples, k=k)
    assert pass_hat_k(passed, samples=samples, k=k) == pytest.approx(1 - failing, abs=1e-12)


def test_large_counts_stay_finite_and_exact() -> None:
    want = 1 - Fraction(math.comb(99_999, 5_000), math.comb(100_000, 5_000))
    assert pass_at_k(1, samples=100_000, k=5_000) == pytest.approx(float(want), rel=1e-9)


@pytest.mark.parametrize("k", [0, 3])
def test_k_outside_the_samples_is_a_config_error(k: int) -> None:
    with pytest.raises(ConfigError, match=rf"pass@{k} of 2 samples.*evaluate\.samples_per_task"):
        pass_at_k(1, samples=2, k=k)
    with pytest.raises(ConfigError, match=rf"pass@{k} of 2 samples"):
        pass_hat_k(1, samples=2, k=k)


@pytest.mark.parametrize("passed", [-1, 3])
def test_more_passes_than_samples_is_refused(passed: int) -> None:
    with pytest.raises(ValueError, match="of 2 samples passed"):
        pass_at_k(passed, samples=2, k=1)
