"""Credit from the rewards of a group, by other baselines than its mean. Mutants seen caught:

- rloo: factor dropped, inverted; section's singleton not passed on
- mc_grpo: mean for median; upper median; floor dropped, added to MAD; |.| dropped; cut above only
- gapo: last window for first; share rounded down, or up from a rounding error; G for G - 1;
  deviation around the mean
- xrpo: negative or wrong trajectories sharpened; eta inverted, not centred; cap dropped; an unknown
  score counted as 0; sum for mean; old tokens or NaN let in; needs fixed; > for >= correct
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.config.learning.advantage import (
    GapoAdvantage,
    McGrpoAdvantage,
    RlooAdvantage,
    XrpoAdvantage,
)
from agentrl.learn.advantages import METHODS
from agentrl.learn.advantages.gapo import gapo
from agentrl.learn.advantages.grpo import rloo
from agentrl.learn.advantages.mc_grpo import mc_grpo
from agentrl.learn.advantages.xrpo import score, sharpen_credit
from agentrl.learn.method import find_needs
from tests.support.learning import advantage_of
from tests.support.turns import group, played

rewards_of_a_group = st.lists(st.floats(-100, 100), min_size=2, max_size=12)
CREDIT: list[Callable[[Sequence[float]], tuple[float, ...]]] = [rloo, mc_grpo, gapo]


def test_rloo_golden() -> None:
    assert rloo([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.0] + [-1 / 3] * 3)
    assert rloo([3.0, 1.0]) == pytest.approx([2.0, -2.0])


@given(rewards_of_a_group)
def test_rloo_takes_off_the_mean_of_the_others(rewards: list[float]) -> None:
    expected = [
        reward - math.fsum(rewards[:i] + rewards[i + 1 :]) / (len(rewards) - 1)
        for i, reward in enumerate(rewards)
    ]
    assert rloo(rewards) == pytest.approx(expected, abs=1e-9)


def test_rloo_alone() -> None:
    assert rloo([0.7]) == (0.0,)
    assert rloo([0.7], singleton="raw") == (0.7,)
    section = RlooAdvantage(singleton="raw")
    (credit,) = advantage_of(section)(group(played(([1], [2], 0.7))))
    assert credit[1] == 0.7


def test_mc_grpo_golden() -> None:
    found = mc_grpo([0.1, 0.4, 0.5, 0.7, 1.0])
    # MAD 0.2 + 0.001.
    assert found == pytest.approx([-1.9900, -0.4975, 0.0, 0.9950, 2.4876], abs=5e-5)
    assert mc_grpo([1.0, 0.0, 0.0, 1.0, 0.0]) == (5.0, 0.0, 0.0, 5.0, 0.0)
    assert mc_grpo([1.0, 0.0, 0.0, 1.0, 0.0], limit=None) == pytest.approx([10, 0, 0, 10, 0])
    as_in_the_code = mc_grpo([1.0, 0.0, 0.0, 1.0, 0.0], floor=1e-9, limit=None)
    assert as_in_the_code == pytest.approx([1000, 0, 0, 1000, 0])
    assert mc_grpo([0.0, 1.0, 1.0], limit=5.0) == (-5.0, 0.0, 0.0)


def test_mc_grpo_takes_the_lower_median_of_an_even_group() -> None:
    assert mc_grpo([0.0, 1.0, 2.0, 3.0]) == pytest.approx([-1 / 1.001, 0.0, 1 / 1.001, 2 / 1.001])
    assert mc_grpo([0.4]) == (0.0,)
    assert mc_grpo([]) == ()


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12))
def test_mc_grpo_always_leaves_somebody_without_credit(rewards: list[float]) -> None:
    assert 0.0 in mc_grpo(rewards)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(0.5, 9))
def test_mc_grpo_is_bounded(rewards: list[float], limit: float) -> None:
    assert all(abs(x) <= limit for x in mc_grpo(rewards, limit=limit))


def test_gapo_golden() -> None:
    rewards = [0.0, 0.1, 0.1, 0.15, 0.2, 0.9, 0.95, 1.0]
    expected = [-0.2299, -0.0460, -0.0460, 0.0460, 0.1379, 1.4252, 1.5171, 1.6091]
    assert gapo(rewards) == pytest.approx(expected, abs=5e-5)
    assert gapo(rewards, normalise_std=False) == pytest.approx([x - 0.125 for x in rewards])
    mean = gapo(rewards, centre="mean", normalise_std=False)
    assert mean == pytest.approx([x - 0.1375 for x in rewards])


def test_gapo_of_binary_rewards_gives_the_majority_nothing() -> None:
    assert gapo([0.0, 1.0, 0.0], normalise_std=False) == (0.0, 1.0, 0.0)
    assert gapo([1.0, 1.0, 0.0], normalise_std=False) == (0.0, 0.0, -1.0)
    # A tie: the lower of two intervals that are equally short.
    assert gapo([1.0, 0.0, 1.0, 0.0], normalise_std=False) == (1.0, 0.0, 1.0, 0.0)


def test_gapo_holds_its_share_rounded_up() -> None:
    # Three of five, not two: the shortest interval of two would be [9, 9.1].
    rewards = [1.0, 1.5, 2.0, 9.0, 9.1]
    assert gapo(rewards, normalise_std=False)[0] == pytest.approx(-0.5)
    assert gapo(rewards, share=0.4, normalise_std=False)[0] == pytest.approx(-8.05)
    # 0.28 x 25 in floats is a little more than seven, which hold 0 to 6.
    many = [float(i) for i in range(7)] + [float(2 ** (i + 8)) for i in range(18)]
    assert gapo(many, share=0.28, normalise_std=False)[0] == -3.0


def test_gapo_alone() -> None:
    assert gapo([0.7]) == (0.0,)
    assert gapo([0.7], singleton="raw") == (0.7,)


@given(st.floats(-1e6, 1e6), st.integers(2, 12))
def test_equal_rewards_give_exactly_zero(reward: float, size: int) -> None:
    for credit in CREDIT:
        assert credit([reward] * size) == (0.0,) * size


@given(rewards_of_a_group, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_better_is_never_worse(
    rewards: list[float], random: st.DataObject
) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for credit in CREDIT:
        found = credit(rewards)
        shuffled = credit([rewards[i] for i in order])
        assert shuffled == pytest.approx([found[i] for i in order], rel=1e-6, abs=1e-9)
        assert all(np.diff(np.asarray(found)[np.argsort(rewards)]) >= 0)


@given(rewards_of_a_group, st.floats(-50, 50))
def test_what_everybody_gets_is_no_credit(rewards: list[float], bonus: float) -> None:
    assume(len({reward + bonus for reward in rewards}) == len({*rewards}))  # none is rounded away
    for credit in (rloo, partial(gapo, normalise_std=False)):
        moved = credit([reward + bonus for reward in rewards])
        assert moved == pytest.approx(credit(rewards), abs=1e-6)


NOVEL = [-1.0, -0.5, -0.6]


def test_xrpo_golden() -> None:
    found = sharpen_credit([0.7] * 3, NOVEL, [True] * 3)
    assert found == pytest.approx([1.05, 0.7, 0.7])
    # Not capped: 2.5 (1 - e^-0.3) = 0.647954.
    assert sharpen_credit([0.7] * 3, NOVEL, [True] * 3, cap=9.0)[0] == pytest.approx(
        1.347954, abs=1e-6
    )
    assert sharpen_credit([0.7] * 3, NOVEL, [True] * 3, bonus=0.1)[0] == pytest.approx(
        0.725918, abs=1e-6
    )


def test_xrpo_sharpens_only_what_is_right_and_has_credit() -> None:
    assert sharpen_credit([0.7, -0.7, 0.0], [-9.0, -9.0, -9.0], [False, True, True]) == (
        0.7,
        -0.7,
        0.0,
    )
    assert sharpen_credit([-0.7, 0.7], [-9.0, -1.0], [True, True]) == (-0.7, 0.7)
    # Without a number it is in no mean: -1 and -3 have -2.
    found = sharpen_credit([1.0] * 3, [-1.0, None, -3.0], [True] * 3, cap=9.0)
    assert found == pytest.approx([1.0, 1.0, 1.0 + 2.5 * (1 - math.exp(-1))])
    assert sharpen_credit([1.0], [None], [True]) == (1.0,)


def test_xrpo_scores_by_the_mean_log_prob_of_what_trains() -> None:
    sample = played(
        ([1, 1], [2, 2], 0.0),
        ([1], [2], 1.0),
        behaviour=[-1.0, -2.0, -6.0],
        proximal=[-3.0, -3.0, -9.0],
    )
    assert score(sample, logprobs="behaviour") == pytest.approx(-3.0)
    assert score(sample, logprobs="proximal") == pytest.approx(-5.0)
    old = played(([1, 1], [2, 2], 0.0), ([1], [2], 1.0), behaviour=[-1, -2, -6], stale=[1])
    assert score(old, logprobs="behaviour") == pytest.approx(-1.5)
    assert score(old, logprobs="proximal") is None
    unknown = played(([1], [2, 2], 1.0), behaviour=[math.nan, -2.0])
    assert score(unknown, logprobs="behaviour") == -2.0
    assert score(played(([1], [2], 1.0), behaviour=[-math.inf]), logprobs="behaviour") is None


def test_xrpo_through_its_section() -> None:
    samples = [
        played(([1], [2], reward), sample=i, behaviour=[log], proximal=[-1.0])
        for i, (reward, log) in enumerate([(1.0, -3.0), (1.0, -1.0), (0.0, -2.0), (0.0, -2.0)])
    ]

    def credit(section: XrpoAdvantage) -> list[float]:
        return [c[1] for c in advantage_of(section)(group(*samples))]

    base = [0.5, 0.5, -0.5, -0.5]
    plain = XrpoAdvantage(normalise_std=False)
    # eta = e^-1, so the bonus of 1.58 is capped at half the advantage.
    assert credit(plain) == pytest.approx([0.75, *base[1:]])
    uncapped = plain.model_copy(update={"cap": 9.0, "bonus": 1.0})
    assert credit(uncapped) == pytest.approx([0.5 + 1 - math.exp(-1), *base[1:]])
    assert credit(plain.model_copy(update={"correct_reward": 1.5})) == pytest.approx(base)
    assert credit(plain.model_copy(update={"logprobs": "proximal"})) == pytest.approx(base)
    assert credit(XrpoAdvantage())[1] == pytest.approx(0.866024, abs=1e-6)
    assert find_needs(METHODS, plain) == {"behaviour logprobs"}
    assert find_needs(METHODS, XrpoAdvantage(logprobs="proximal")) == {"proximal logprobs"}


def test_every_knob_reaches_the_formula() -> None:
    samples = [played(([1], [2], reward), sample=i) for i, reward in enumerate([0.0, 1.0, 3.0])]

    def credit(section: GapoAdvantage | McGrpoAdvantage) -> list[float]:
        return [c[1] for c in advantage_of(section)(group(*samples))]

    assert credit(McGrpoAdvantage(epsilon=1.0)) == pytest.approx([-0.5, 0, 1])
    assert credit(McGrpoAdvantage(floor=4.0)) == pytest.approx([-0.25, 0, 0.5])
    assert credit(McGrpoAdvantage(epsilon=0, limit=1.5)) == pytest.approx([-1, 0, 1.5])
    gapo_section = GapoAdvantage(normalise_std=False)
    assert credit(gapo_section) == pytest.approx([-0.5, 0.5, 2.5])
    whole = gapo_section.model_copy(update={"share": 1.0})
    assert credit(whole) == pytest.approx([-1, 0, 2])
    mean = whole.model_copy(update={"centre": "mean"})
    assert credit(mean) == pytest.approx([-4 / 3, -1 / 3, 5 / 3])
    spread = math.sqrt((0.25 + 0.25 + 6.25) / 2)
    assert credit(GapoAdvantage(epsilon=1.0))[2] == pytest.approx(2.5 / (spread + 1))
    (alone,) = advantage_of(GapoAdvantage(singleton="raw"))(group(samples[2]))
    assert alone[1] == 3.0
