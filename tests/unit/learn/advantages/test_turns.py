"""Credit that differs between the turns or the tokens of a trajectory. Mutants seen caught:

- turns: discounted forwards, own reward discounted; what the reward holds beyond its turns lost or
  paid first; a turn's reward at its first token; that of a stale turn lost; the end's at the
  beginning; a turn's credit one turn off
- whitening: ddof=0; not centred; over all tokens; equal values through the formula
- reinforce_pp: gamma dropped; observations as steps; not white; `paid` fixed; baseline over each
  group's deviation
- gae: no next value, or undiscounted; sign; lambda without gamma; bootstrap always, never; returns
  without V; value at a turn's end; level ignored; whitened always; off-mask values read; critic's
  returns with another lambda
- segments: cut at turns; gamma dropped; whitening swapped
- gigpo: omega dropped; episode term lost; rewards for returns; grouped by index; alone with its
  anchor raw; anchors with sampled tokens; > for >= alike; autojunk; similarity or count ignored;
  credit of repeated rewards shifted; deviation always
- ui_s1: paper and code swapped; a mismatch that carries on; rewards changed in place; > for >=
  matched; each weight dropped; first return and row reward ignored; alone with its index raw
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learning.advantage import (
    GaeAdvantage,
    GigpoAdvantage,
    GrpoAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    SegmentReinforceAdvantage,
    UiS1Advantage,
)
from agentrl.errors import LearnError
from agentrl.learn.advantages.gae import gae, gae_returns, returns_of
from agentrl.learn.advantages.gigpo import clusters
from agentrl.learn.advantages.ui_s1 import future_returns
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.turns import discount, token_rewards, turn_rewards
from agentrl.learn.whitening import whiten_credit
from tests.support.learning import advantage_of
from tests.support.turns import Turn, group, on_mask, played

THREE: tuple[Turn, ...] = (([1, 1], [2, 2], 0.5), ([3], [4], 0.0), ([5, 5], [6, 7], 2.0))


def by_turn(section: object, *samples: TrainingSample) -> list[list[float]]:
    """Return the credit of the turns of each sample, each the same at all its tokens."""
    found: list[list[float]] = []
    for sample, credit in zip(samples, advantage_of(section)(group(*samples)), strict=True):  # type: ignore[arg-type]
        turns = [credit[sample.sampled & (sample.turns == k)] for k in range(3)]
        assert all(np.ptp(turn) == 0 for turn in turns if len(turn))
        found.append([float(turn[0]) for turn in turns if len(turn)])
    return found


def test_turn_rewards_add_up_to_the_reward() -> None:
    assert turn_rewards(played(*THREE)).tolist() == [0.5, 0.0, 2.0]
    assert turn_rewards(played(*THREE, reward=7.0)).tolist() == [0.0, 0.0, 7.0]
    # A last turn that no reward followed, as one that ran out of tokens; and a shaped reward.
    sample = played(*THREE)
    short = replace(played(*THREE, reward=1.0), turn_rewards=(0.25,))
    assert turn_rewards(short).tolist() == [0.25, 0.0, 0.75]
    assert turn_rewards(played(([1], [], 3.0), reward=3.0)).tolist() == [3.0]
    assert token_rewards(sample, paid="turns").tolist() == [0, 0, 0, 0.5, 0, 0, 0, 0, 0, 2]
    assert token_rewards(sample, paid="end").tolist() == [0] * 9 + [2.5]


def test_rewards_of_turns_that_do_not_train_go_to_what_came_before() -> None:
    assert token_rewards(played(*THREE, stale=[2]), paid="turns").tolist() == [
        *[0, 0, 0, 0.5, 0],
        *[2, 0, 0, 0, 0],
    ]
    assert token_rewards(played(*THREE, stale=[0]), paid="turns").sum() == 2.0
    assert not token_rewards(played(*THREE, stale=[0, 1, 2]), paid="end").any()


@given(st.lists(st.floats(-9, 9), max_size=8), st.floats(0, 1))
def test_discounted_sums_follow_their_recursion(values: list[float], decay: float) -> None:
    found = discount(np.asarray(values), decay)
    for i in range(len(values)):
        later = [decay ** (j - i) * values[j] for j in range(i, len(values))]
        assert found[i] == pytest.approx(math.fsum(later), abs=1e-6)


def test_whitening_is_over_every_token_that_trains() -> None:
    one, two = played(([1], [2, 2], 0.0)), played(([1], [2], 0.0))
    found = whiten_credit([one, two], [np.array([math.nan, 1.0, 2.0]), np.array([9e9, 6.0])])
    # Mean 3 and unbiased variance 7 of 1, 2, 6.
    expected = [-2 / math.sqrt(7), -1 / math.sqrt(7), 3 / math.sqrt(7)]
    assert on_mask(one, found[0]) + on_mask(two, found[1]) == pytest.approx(expected)
    assert found[0][0] == found[1][0] == 0.0
    assert [x.tolist() for x in whiten_credit([one], [np.array([5.0, 0.1, 0.1])])] == [[0.0] * 3]
    assert whiten_credit([two], [np.array([1.0, 4.0])])[0].tolist() == [0.0, 0.0]
    assert whiten_credit([], []) == []


@given(st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=5), min_size=2, max_size=5))
def test_white_credit_has_mean_zero_and_variance_one(rows: list[list[float]]) -> None:
    samples = [played(([1], [2] * len(row), 0.0)) for row in rows]
    given_credit = [np.asarray([7.0, *row]) for row in rows]
    found = np.concatenate([c[1:] for c in whiten_credit(samples, given_credit)])
    values = np.concatenate([c[1:] for c in given_credit])
    assert found.mean() == pytest.approx(0, abs=1e-6)
    if values.std() > 0.1:
        assert found.var(ddof=1) == pytest.approx(1, rel=1e-4)


# Sampled, sampled, observed, sampled; paid 1 at the end.
MASKED = played(([], [2, 2], 0.0), ([9], [2], 1.0), values=[0.2, 0.5, 0.6])


def test_returns_pass_over_observations() -> None:
    section = ReinforcePpAdvantage()
    other = played(([1], [2], 0.0), sample=1)
    credit = advantage_of(section)(group(MASKED, other))
    # Of returns 1, 1, 1 and 0: mean 3/4, variance 1/4.
    assert on_mask(MASKED, credit[0]) == pytest.approx([0.5] * 3)
    assert on_mask(other, credit[1]) == pytest.approx([-1.5])
    halved = advantage_of(ReinforcePpAdvantage(gamma=0.5))(group(MASKED, other))
    raw = np.array([0.25, 0.5, 1.0, 0.0])
    expected = (raw - raw.mean()) / raw.std(ddof=1)
    found = on_mask(MASKED, halved[0]) + on_mask(other, halved[1])
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_reinforce_pp_may_pay_turn_by_turn() -> None:
    sample = played(*THREE)
    raw = np.array([2.5, 2.5, 2.0, 2.0, 2.0])
    found = advantage_of(ReinforcePpAdvantage(paid="turns"))(group(sample))
    expected = (raw - raw.mean()) / raw.std(ddof=1)
    assert on_mask(sample, found[0]) == pytest.approx(expected.tolist(), abs=1e-6)
    assert not advantage_of(ReinforcePpAdvantage())(group(sample))[0].any()


def test_reinforce_pp_baseline_golden() -> None:
    samples = played(([1], [2], 1.0)), played(([1], [2, 2, 2], 0.0), sample=1)
    credit = advantage_of(ReinforcePpBaselineAdvantage())(group(*samples))
    # Of 1/2 once and -1/2 thrice: mean -1/4, variance 1/4.
    assert on_mask(samples[0], credit[0]) == pytest.approx([1.5])
    assert on_mask(samples[1], credit[1]) == pytest.approx([-0.5] * 3)
    # Groups of unlike spread keep it: 1/2, -1/2, 2, -2 have variance 17/6.
    wide = TrainingGroup("w", (played(([1], [2], 4.0)), played(([1], [2], 0.0), sample=1)))
    short = TrainingGroup("s", (samples[0], played(([1], [2], 0.0), sample=1)))
    found = [c[1] for c in advantage_of(ReinforcePpBaselineAdvantage())([short, wide])]
    scale = math.sqrt(17 / 6)
    assert found == pytest.approx([0.5 / scale, -0.5 / scale, 2 / scale, -2 / scale])
    groups = [TrainingGroup("a", (samples[0],)), TrainingGroup("b", (played(([1], [2], 3.0)),))]
    raw = advantage_of(ReinforcePpBaselineAdvantage(singleton="raw"))(groups)
    assert [c[1] for c in raw] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert not any(c.any() for c in advantage_of(ReinforcePpBaselineAdvantage())(groups))


@pytest.mark.parametrize("hidden", [9.0, math.nan])
def test_gae_golden(hidden: float) -> None:
    values = MASKED.values
    assert values is not None
    values[2] = hidden
    section = GaeAdvantage(lam=0.5, whiten=False)
    (credit,) = advantage_of(section)(group(MASKED))
    assert on_mask(MASKED, credit) == pytest.approx([0.45, 0.30, 0.40])
    (returns,) = gae_returns(group(MASKED), lam=0.5)
    assert on_mask(MASKED, returns) == pytest.approx([0.65, 0.80, 1.00])
    (white,) = advantage_of(GaeAdvantage(lam=0.5))(group(MASKED))
    raw = np.array([0.45, 0.30, 0.40])
    expected = (raw - raw.mean()) / raw.std(ddof=1)
    assert on_mask(MASKED, white) == pytest.approx(expected.tolist(), rel=1e-5)


def test_gae_per_turn_golden() -> None:
    sample = played(*THREE, values=[0.4, 9.0, 0.6, 1.0, 9.0])
    section = GaeAdvantage(level="turn", gamma=0.5, lam=0.5, whiten=False)
    # d = .5 + .3 - .4, 0 + .5 - .6, 2 - 1; A = d + A' / 4.
    third, second = 1.0, -0.1 + 0.25
    first = 0.4 + second / 4
    (credit,) = advantage_of(section)(group(sample))
    assert on_mask(sample, credit) == pytest.approx([first, first, second, third, third])
    (returns,) = returns_of(section)(group(sample))
    expected = [first + 0.4] * 2 + [second + 0.6] + [third + 1.0] * 2
    assert on_mask(sample, returns) == pytest.approx(expected)


def test_what_a_limit_ended_goes_on_in_the_critics_eyes() -> None:
    turns: tuple[Turn, ...] = (([1], [2], 0.0), ([1], [2], 1.0))
    levels: tuple[Literal["token", "turn"], ...] = ("token", "turn")
    for level in levels:
        section = GaeAdvantage(level=level, gamma=0.5, whiten=False)
        for truncated, rest in ((False, 0.0), (True, 4.0)):
            sample = played(*turns, values=[0.0, 0.0], truncated=truncated, final_value=4.0)
            (credit,) = advantage_of(section)(group(sample))
            last = 1.0 + 0.5 * rest
            assert on_mask(sample, credit) == pytest.approx([0.5 * last, last])


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=7),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_between_its_two_ends(
    steps: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = (np.asarray(x) for x in zip(*steps, strict=True))
    whole = gae(rewards, values, gamma=gamma, lam=1.0) + values
    assert whole == pytest.approx(discount(rewards, gamma), abs=1e-6)
    one_step = rewards + gamma * np.append(values[1:], 0.0) - values
    assert gae(rewards, values, gamma=gamma, lam=0.0) == pytest.approx(one_step, abs=1e-9)
    exact = discount(rewards, gamma)
    # A perfect critic leaves no credit, whatever lambda is.
    assert gae(rewards, exact, gamma=gamma, lam=lam) == pytest.approx(0 * exact, abs=1e-6)


def test_values_are_asked_for_where_they_are_missing() -> None:
    with pytest.raises(LearnError, match=r"task 't' sample 0 has no values.*learn\.critic"):
        advantage_of(GaeAdvantage())(group(played(*THREE)))
    silent = played(([1, 2], [], 0.0))
    assert not advantage_of(GaeAdvantage())(group(silent))[0].any()
    assert returns_of(GrpoAdvantage()) is gae_returns


def test_tokens_that_do_not_train_are_no_steps() -> None:
    sample = played(*THREE, values=[0.4, 0.4, 7.0, 1.0, 1.0], stale=[1])
    token = GaeAdvantage(gamma=0.5, whiten=False)
    (credit,) = advantage_of(token)(group(sample))
    # Returns 1/2 (1/2 + 1/2 x 1), 1/2 + 1/2 x 1, 1/2 x 2 and 2.
    assert on_mask(sample, credit) == pytest.approx([0.5 - 0.4, 1.0 - 0.4, 1.0 - 1.0, 2.0 - 1.0])
    turn = GaeAdvantage(level="turn", gamma=0.5, whiten=False)
    (credit,) = advantage_of(turn)(group(sample))
    assert on_mask(sample, credit) == pytest.approx([0.5 + 0.5 * 2 - 0.4] * 2 + [1.0] * 2)


def test_segments_golden() -> None:
    section = SegmentReinforceAdvantage(gamma=0.5)
    assert by_turn(section, played(*THREE)) == [[0.5 + 0.25 * 2, 1.0, 2.0]]
    # Nothing between two turns: one segment, paid for both.
    merged = played(([1], [2], 1.0), ([], [2], 3.0), ([5], [2], 8.0))
    assert by_turn(section, merged) == [[8.0, 8.0, 8.0]]
    old = played(*THREE, stale=[2])
    (credit,) = advantage_of(section)(group(old))
    assert on_mask(old, credit) == pytest.approx([1.5, 1.5, 2.0])
    assert advantage_of(section)(group(played(([1], [], 1.0), reward=1.0)))[0].tolist() == [0.0]
    sample = played(*THREE)
    (white,) = advantage_of(SegmentReinforceAdvantage(whiten=True))(group(sample))
    assert sum(on_mask(sample, white)) == pytest.approx(0)


def apart(*answers: int, rewards: Sequence[float]) -> TrainingSample:
    """Return a sample whose turns answer these tokens, of one sampled token each."""
    turns = [([a], [99], reward) for a, reward in zip(answers, rewards, strict=True)]
    return played(*turns)


def test_gigpo_golden() -> None:
    # Alone, the returns of a reward at the end are .9025, .95 and 1; nothing to compare them with.
    assert discount(np.array([0.0, 0.0, 1.0]), 0.95) == pytest.approx([0.9025, 0.95, 1.0])
    one, two = apart(1, 5, 6, rewards=[0, 0, 1]), apart(1, 7, 5, rewards=[0, 0, 0])
    # Turn 0 answers the same prompt; turn 1 of the one and turn 2 of the other the same result.
    first, second = by_turn(GigpoAdvantage(), one, two)
    assert first == pytest.approx([0.5 + 0.45125, 0.5 + 0.475, 0.5])
    assert second == pytest.approx([-0.5 - 0.45125, -0.5, -0.5 - 0.475])
    half = by_turn(GigpoAdvantage(omega=0.5), one, two)
    assert half[0] == pytest.approx([0.5 + 0.225625, 0.5 + 0.2375, 0.5])
    std = by_turn(GigpoAdvantage(normalise_std=True), one, two)
    assert std[0] == pytest.approx(
        [2 * math.sqrt(0.5), 2 * math.sqrt(0.5), math.sqrt(0.5)], abs=5e-6
    )
    coarse = by_turn(GigpoAdvantage(normalise_std=True, epsilon=1.0), one, two)
    assert coarse[0][2] == pytest.approx(0.5 / (math.sqrt(0.5) + 1))
    undiscounted = by_turn(GigpoAdvantage(gamma=1.0), one, two)
    assert undiscounted[0] == pytest.approx([1.0, 1.0, 0.5])


def test_gigpo_counts_a_trajectory_once_or_once_per_turn() -> None:
    long, short = apart(1, 5, 6, rewards=[0, 0, 1]), apart(1, rewards=[0])
    once = by_turn(GigpoAdvantage(omega=0.0), long, short)
    assert (once[0][0], once[1][0]) == pytest.approx((0.5, -0.5))
    often = by_turn(GigpoAdvantage(omega=0.0, count="turn"), long, short)
    assert (often[0][0], often[1][0]) == pytest.approx((0.25, -0.75))


def test_gigpo_alone() -> None:
    one = apart(1, 5, 6, rewards=[0, 0, 1])
    assert by_turn(GigpoAdvantage(), one) == [[0.0] * 3]
    assert by_turn(GigpoAdvantage(singleton="raw"), one) == [[1.0] * 3]
    # Two turns of one trajectory in the same situation are compared all the same.
    again = apart(5, 5, rewards=[0, 1])
    assert by_turn(GigpoAdvantage(), again)[0] == pytest.approx([-0.025, 0.025])
    silent = played(([1], [], 1.0), reward=1.0)
    both = advantage_of(GigpoAdvantage(count="turn"))(group(silent, one))
    assert not both[0].any()


def test_gigpo_compares_within_a_group_only() -> None:
    one, two = apart(1, rewards=[1]), apart(1, rewards=[0])
    credit = advantage_of(GigpoAdvantage())(
        [TrainingGroup("a", (one,)), TrainingGroup("b", (two,))]
    )
    assert not any(c.any() for c in credit)


def test_anchors_may_be_alike_instead_of_equal() -> None:
    long = [*range(100, 120)]
    near, far = [*long[:-1], 7], [*range(200, 220)]
    samples = [played(([1], [2], 0.0), (answer, [2], 0.0)) for answer in (long, near, far, long)]
    assert clusters(samples) == [
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        [(0, 1), (3, 1)],
        [(1, 1)],
        [(2, 1)],
    ]
    alike = clusters(samples, similarity=0.95)
    assert alike[1:] == [[(0, 1), (1, 1), (3, 1)], [(2, 1)]]
    assert clusters(samples, similarity=0.96)[1:] == clusters(samples)[1:]
    # Frequent tokens count as well: 300 of one kind and one that differs.
    many = [played((answer, [2], 0.0)) for answer in ([5] * 300, [6] + [5] * 299)]
    assert len(clusters(many, similarity=0.95)) == 1
    assert len(clusters(many)) == 2
    section = GigpoAdvantage(omega=1.0, similarity=0.9)
    other = [played((answer, [2], r)) for answer, r in (([5] * 30, 1.0), ([5] * 29 + [6], 0.0))]
    assert by_turn(section, *other) == [[1.0], [-1.0]]


MATCHED = np.array([True, True, False, True])
REWARDS = np.array([1.0, 1.0, 0.19, 1.0])


def test_ui_s1_returns_golden() -> None:
    assert future_returns(REWARDS, MATCHED) == pytest.approx([1.5, 1.0, 0.19, 1.0])
    paper = future_returns(REWARDS, MATCHED, returns="paper")
    assert paper == pytest.approx([1.5475, 1.095, 0.19, 1.0])
    assert future_returns(REWARDS, MATCHED, gamma=0.0) == pytest.approx(REWARDS)
    assert REWARDS.tolist() == [1.0, 1.0, 0.19, 1.0]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=8))
def test_a_return_never_reaches_beyond_the_first_mismatch(
    steps: list[tuple[float, bool]],
) -> None:
    rewards = np.array([r for r, _ in steps])
    matched = np.array([m for _, m in steps])
    for t in range(len(steps)):
        missed = np.flatnonzero(~matched[t:])
        end = t + int(missed[0]) if len(missed) else len(steps)
        reach = {"code": max(end, t + 1), "paper": min(end + 1, len(steps))}
        for returns, upto in reach.items():
            found = future_returns(rewards, matched, returns=returns)[t]  # type: ignore[arg-type]
            expected = math.fsum(0.5 ** (k - t) * rewards[k] for k in range(t, upto))
            assert found == pytest.approx(expected, abs=1e-9)


EXPERT = (
    apart(1, 5, 6, rewards=[1.0, 1.0, 1.0]),
    apart(1, 5, rewards=[1.0, 0.19]),
    apart(1, rewards=[0.1]),
)


def z(values: Sequence[float]) -> list[float]:
    """Return standard scores by the unbiased deviation, without epsilon."""
    found = np.asarray(values)
    return ((found - found.mean()) / found.std(ddof=1)).tolist()


def test_ui_s1_adds_a_step_and_an_episode_term() -> None:
    first = z([1.75, 1.0, 0.1])
    second = z([1.5, 0.19])
    episode = z([3.0, 1.19, 0.1])
    found = by_turn(UiS1Advantage(), *EXPERT)
    assert found[0] == pytest.approx(
        [episode[0] + first[0], episode[0] + second[0], episode[0]], abs=1e-4
    )
    assert found[1] == pytest.approx([episode[1] + first[1], episode[1] + second[1]], abs=1e-4)
    assert found[2] == pytest.approx([episode[2] + first[2]], abs=1e-4)
    paper = by_turn(UiS1Advantage(returns="paper", episode_weight=0.0), *EXPERT)
    assert paper[1][0] == pytest.approx(z([1.75, 1.095, 0.1])[1], abs=1e-4)
    one = by_turn(UiS1Advantage(omega=0.0, episode_term="first_return"), *EXPERT)
    assert [turns[0] for turns in one] == pytest.approx(first, abs=1e-4)
    rows = by_turn(UiS1Advantage(omega=0.0, episode_term="row_reward"), *EXPERT)
    expected = z([1.0, 1.0, 1.0, 1.0, 0.19, 0.1])
    assert [x for turns in rows for x in turns] == pytest.approx(expected, abs=1e-4)


def test_every_knob_of_ui_s1_reaches_the_formula() -> None:
    plain = UiS1Advantage(normalise_std=False, omega=0.0)
    assert by_turn(plain, *EXPERT)[0] == pytest.approx([3.0 - 4.29 / 3] * 3)
    step = UiS1Advantage(normalise_std=False, episode_weight=0.0)
    assert by_turn(step, *EXPERT)[0] == pytest.approx([1.75 - 2.85 / 3, 1.5 - 1.69 / 2, 0.0])
    flat = step.model_copy(update={"gamma": 0.0, "omega": 2.0})
    assert by_turn(flat, *EXPERT)[0] == pytest.approx([2 * (1 - 0.7), 2 * 0.405, 0.0])
    # With a lower bar the second trajectory's second turn matches too, and the first one earns.
    low = step.model_copy(update={"match_reward": 0.15})
    assert by_turn(low, *EXPERT)[1][0] == pytest.approx(1.095 - (1.75 + 1.095 + 0.1) / 3)
    high = step.model_copy(update={"match_reward": 2.0})
    assert by_turn(high, *EXPERT)[0] == pytest.approx([0.3, 0.405, 0.0])
    raw = by_turn(plain.model_copy(update={"singleton": "raw"}), EXPERT[1])
    assert raw == [[pytest.approx(1.19)] * 2]
    assert by_turn(UiS1Advantage(), EXPERT[0]) == [[0.0] * 3]
    coarse = by_turn(UiS1Advantage(epsilon=1e9), *EXPERT)
    assert all(abs(x) < 1e-6 for turns in coarse for x in turns)
    silent = played(([1], [], 1.0), reward=1.0)
    for term in ("row_reward", "first_return", "trajectory_return"):
        section = UiS1Advantage().model_copy(update={"episode_term": term})
        assert not advantage_of(section)(group(silent))[0].any()


SECTIONS = [
    GaeAdvantage(),
    GaeAdvantage(level="turn"),
    GigpoAdvantage(normalise_std=True),
    GigpoAdvantage(similarity=0.95),
    ReinforcePpAdvantage(paid="turns", gamma=0.9),
    ReinforcePpBaselineAdvantage(),
    SegmentReinforceAdvantage(whiten=True),
    UiS1Advantage(),
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.name)
@given(
    st.lists(
        st.lists(
            st.tuples(st.lists(st.integers(1, 3), max_size=2), st.integers(0, 3), st.floats(-1, 1)),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_credit_is_finite_and_does_not_depend_on_the_order_of_a_group(
    section: object, games: list[list[tuple[list[int], int, float]]], stale: int
) -> None:
    samples = [
        played(
            *[([4, *answer], [5] * n, reward) for answer, n, reward in game],
            sample=i,
            stale=[stale],
            values=np.linspace(0, 1, sum(n for _, n, _ in game)).tolist(),
        )
        for i, game in enumerate(games)
    ]
    method = advantage_of(section)  # type: ignore[arg-type]
    found = method(group(*samples))
    turned = method(group(*samples[::-1]))[::-1]
    for sample, one, two in zip(samples, found, turned, strict=True):
        assert len(one) == len(sample.token_ids)
        assert np.isfinite(one[sample.mask]).all()
        np.testing.assert_allclose(one[sample.mask], two[sample.mask], atol=1e-5)
