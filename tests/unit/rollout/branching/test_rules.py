"""Entropy with its bounds, and the rules of ARPO and AEPO: worked numbers, then all numbers."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.branching.aepo import (
    AepoPaperRule,
    AepoRule,
    MonitoredRootSplit,
    ObservedSignals,
    OnlineRootSplit,
    root_share,
)
from agentrl.rollout.branching.arpo import ArpoPaperRule, ArpoRule
from agentrl.rollout.branching.entropy import (
    EntropySignal,
    bounds,
    code_signal,
)
from agentrl.rollout.branching.rule import draw_seeded

LOGITS = st.lists(st.floats(-12, 12), min_size=2, max_size=60)


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    norm = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    return sorted((x - norm for x in logits), reverse=True)


def exact_entropy(logits: Sequence[float]) -> float:
    """Return the entropy of the softmax of all logits, in nats."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    centred = math.fsum(w * (x - top) for w, x in zip(weights, logits, strict=True))
    return math.log(total) - centred / total


def clip(x: float) -> float:
    return min(1.0, max(0.0, x))


def test_the_code_adds_up_what_is_reported() -> None:
    rows = [logs(0.9, 0.1), logs(0.5, 0.5)]
    assert math.fsum(bounds(row, vocabulary=100).reported for row in rows) == pytest.approx(
        1.018230, abs=5e-7
    )
    probe = code_signal(100).measure(rows)
    assert probe is not None
    assert probe.value == pytest.approx(0.221106, abs=5e-7)
    mean = EntropySignal(vocabulary=100).measure(rows)
    assert mean is not None
    assert mean.value == pytest.approx(0.221106 / 2, abs=5e-7)


def test_bounds_by_hand() -> None:
    """0.2 is missing: two tokens of 0.1 at the most packed, 8 of 0.025 at the most spread."""
    found = bounds(logs(0.7, 0.1), vocabulary=10)
    head = -0.7 * math.log(0.7) - 0.1 * math.log(0.1)
    assert found.reported == pytest.approx(head)
    assert found.lower == pytest.approx(head - 0.2 * math.log(0.1))
    assert found.upper == pytest.approx(head - 0.2 * math.log(0.025))
    assert found.point("middle") == pytest.approx((found.lower + found.upper) / 2)


@given(logits=LOGITS, k=st.integers(1, 60))
def test_the_exact_entropy_lies_between(logits: list[float], k: int) -> None:
    reported = log_softmax(logits)[:k]
    exact, found = exact_entropy(logits), bounds(reported, vocabulary=len(logits), top_k=k)
    assert found.lower - 2e-4 <= exact <= found.upper + 2e-4
    assert found.reported <= found.lower + 1e-12
    if k >= len(logits):
        assert found.lower == found.upper == pytest.approx(exact, abs=1e-6)


@given(logits=LOGITS)
def test_more_log_probs_never_say_less(logits: list[float]) -> None:
    ranked, size = log_softmax(logits), len(logits)
    each = [bounds(ranked[:k], vocabulary=size) for k in range(1, size + 1)]
    for less, more in pairwise(each):
        assert more.lower >= less.lower - 2e-4
        assert more.upper <= less.upper + 2e-4


@given(logits=st.lists(st.floats(-12, 12), min_size=4, max_size=60), data=st.data())
def test_a_sampled_token_beyond_the_top_bounds_nothing(
    logits: list[float], data: st.DataObject
) -> None:
    ranked = log_softmax(logits)
    extra = data.draw(st.integers(2, len(ranked) - 1))
    found = bounds([*ranked[:2], ranked[extra]], vocabulary=len(ranked), top_k=2)
    assert found.lower - 2e-4 <= exact_entropy(logits) <= found.upper + 2e-4


def test_only_the_first_tokens_count_and_nothing_reported_is_none() -> None:
    signal = EntropySignal(vocabulary=100, tokens=1)
    assert signal.measure([logs(0.9, 0.1), logs(0.5, 0.5)]) == signal.measure([logs(0.9, 0.1)])
    assert signal.measure([]) is None
    assert signal.measure([[]]) is None


def test_the_mean_is_the_codes_sum_over_twenty_tokens() -> None:
    rows = [logs(0.6, 0.3, 0.1)] * 20
    mean, total = EntropySignal(vocabulary=50).measure(rows), code_signal(50).measure(rows)
    assert mean is not None
    assert total is not None
    assert total.value == pytest.approx(20 * mean.value)
    by_mean = AepoRule().chance(mean.value - 0.1, 2).value
    by_sum = AepoRule(weight=0.2).chance(total.value - 2.0, 2).value
    assert by_mean == pytest.approx(by_sum)


@pytest.mark.parametrize("wrong", [[], [0.0, 0.0], [0.0] * 3])
def test_log_probs_of_no_distribution_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match=r"log-probs"):
        bounds(wrong, vocabulary=2)


def test_chances_by_hand() -> None:
    arpo, aepo = ArpoRule(base=0.5, weight=0.2), AepoRule(base=0.5, weight=0.2)
    assert arpo.chance(0.5, 7).value == pytest.approx(0.6)
    for streak, wanted in [(0, 0.6), (1, 0.573684), (4, 0.475), (10, 0.1), (20, 0.0), (30, 0.0)]:
        assert aepo.chance(0.5, streak).value == pytest.approx(wanted, abs=5e-7)


def test_a_larger_base_means_more_for_arpo_and_less_for_aepo() -> None:
    assert ArpoRule(base=0.7).chance(0, 0).value == pytest.approx(0.7)
    assert AepoRule(base=0.7).chance(0, 0).value == pytest.approx(0.3)


@given(
    u=st.floats(0, 1, exclude_max=True),
    base=st.floats(0.01, 1),
    weight=st.floats(0, 5),
    rise=st.floats(-1, 1),
    streak=st.integers(0, 25),
)
def test_the_chance_is_that_of_the_codes_own_expression(
    u: float, base: float, weight: float, rise: float, streak: int
) -> None:
    """Per draw, not on average: rounding aside, the same draws branch."""
    p = ArpoRule(base=base, weight=weight).chance(rise, streak).value
    if base < 1 and abs(u - p) > 1e-9:
        assert (u < p) == (clip(u - weight * rise) <= base)
    factor = max(0.0, 1 - 0.05 * streak)
    p = AepoRule(base=base, weight=weight).chance(rise, streak).value
    mirrored = 1 - u
    if abs(u - p) > 1e-9 and factor > 1e-9:
        assert (u < p) == (clip((mirrored + weight * rise) * factor) >= base)


def test_draws_branch_as_often_as_the_chance_says() -> None:
    chance, count = AepoRule(weight=0.2).chance(0.5, 1).value, 20_000
    hits = sum(draw_seeded(3, "task", ("branch", i)) < chance for i in range(count))
    sigma = math.sqrt(chance * (1 - chance) / count)
    assert abs(hits / count - chance) < 3 * sigma


def test_the_papers_threshold_is_exact_and_knows_no_draw() -> None:
    arpo = ArpoPaperRule(alpha=0.5, beta=1.0, threshold=0.6)
    assert arpo.chance(0.1, 0).value == 0.0, "equal is not above"
    assert arpo.chance(0.11, 9).value == 1.0
    aepo = AepoPaperRule(alpha=0.5, gamma=1.0, threshold=0.5, penalty=0.1)
    first, third = aepo.chance(0.1, 0), aepo.chance(0.1, 2)
    assert (first.value, first.score) == (1.0, pytest.approx(0.6))
    assert (third.value, third.score) == (0.0, pytest.approx(0.48))
    literal = AepoPaperRule(alpha=-3, gamma=1.0, threshold=0.5, penalty=None)
    assert literal.chance(0.0, 2).value == 0.0, "two negatives make no branch"
    assert literal.chance(0.0, 2).factor == 0.0


def test_root_share_by_hand() -> None:
    for root, tool, wanted in [(0.30, 0.10, 9), (0.10, 0.30, 8), (0.2, 0.2, 9)]:
        assert root_share(16, root=root, tool=tool, temperature=0.5) == wanted
    # 16 * sigmoid(0.1) = 8.3997, 16 * sigmoid(2) = 14.09
    assert root_share(16, root=0.3, tool=0.1, temperature=0.5, form="paper") == 8
    assert root_share(16, root=0.3, tool=0.1, form="paper") == 14
    assert root_share(16, root=0.3, tool=0.1) == 15


@given(
    leaves=st.integers(1, 64),
    root=st.floats(0, 1),
    tool=st.floats(0, 1),
    temperature=st.floats(0, 1e4),
)
def test_a_share_is_within_the_leaves_and_grows_with_the_root(
    leaves: int, root: float, tool: float, temperature: float
) -> None:
    for form in ("code", "paper"):
        one = root_share(leaves, root=root, tool=tool, temperature=temperature, form=form)
        more = root_share(leaves, root=root + 0.1, tool=tool, temperature=temperature, form=form)
        assert 1 <= one <= more <= leaves


def test_what_was_observed_adds_up_to_a_share() -> None:
    one = ObservedSignals(root_sum=0.6, roots=2, tool_sum=0.2, tools=2)
    assert (one + one).share(16, OnlineRootSplit(temperature=0.5)) == 9
    assert ObservedSignals().share(16, OnlineRootSplit()) is None
    assert ObservedSignals(root_sum=0.3, roots=1).share(16, MonitoredRootSplit()) == 9, (
        "the root stands for both"
    )
    # With the openings (0.6 + 0.2) / 4 = 0.2, so 16 * sigmoid(1) = 11.7; else 16 * sigmoid(2).
    assert one.share(16, OnlineRootSplit(count_opening=True)) == 12
    assert one.share(16, OnlineRootSplit()) == 15
    among = OnlineRootSplit(temperature=100, count_opening=True, form="paper")
    # (0.3 + 0.3 + 0.1 + 0.1) / 4 = 0.2, 16 * sigmoid(10) = 15.999
    assert one.share(16, among) == 16
    assert ObservedSignals(root_sum=0.2, roots=2, tool_sum=0.6, tools=2).share(16, among) == 1


def test_draws_are_uniform_below_one_and_differ_by_what_they_are_for() -> None:
    draws = [draw_seeded(1, "t", ("x", i)) for i in range(2000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.03
    assert len({draw_seeded(s, t, (w,)) for s in (0, 1) for t in "ab" for w in "cd"}) == 8
