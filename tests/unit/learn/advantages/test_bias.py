"""Is an advantage a baseline? Exact expectations over every group of a small decision process.

Two turns of two actions. Action a at the first turn leads to the observation of a, whose second
turn pays by both actions; one first action may also end the game at once, so that lengths differ.
Each group of three is enumerated with its probability, and the expected estimate
E[1/G sum_i sum_k A_ik grad log pi(a_ik)] is compared with the gradient of the expected reward.

Mutants seen caught: RLOO's factor inverted; GAE's value that of the next turn, which knows the
action; GiGPO's anchors ignored.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy import ndarray

from agentrl.config.learning.advantage import (
    GaeAdvantage,
    GigpoAdvantage,
    GrpoAdvantage,
    ReinforcePpAdvantage,
    RlooAdvantage,
    SegmentReinforceAdvantage,
    UiS1Advantage,
)
from agentrl.config.section import ConfigSection
from agentrl.learn.sample import TrainingSample
from tests.support.learning import advantage_of
from tests.support.turns import Turn, group, played

GROUP = 3
LOGITS = np.array([0.4, -0.7, 0.9])
"""Of action 1 over action 0: at the beginning, after action 0, after action 1."""
FIRST = (0.3, 0.0)
"""What the first action pays."""
SECOND = ((1.0, -0.5), (2.0, 0.25))
"""What the second pays after each first one."""


@dataclass(frozen=True)
class Play:
    """One way the game can go."""

    sample: TrainingSample
    probability: float
    scores: ndarray
    """Gradient of the log-probability of each turn's action: turns x logits."""


def plays(*, ends: bool) -> list[Play]:
    """Return every way the game can go; with `ends` the first action 1 ends it."""
    found: list[Play] = []
    for first in (0, 1):
        for second in (None,) if ends and first else (0, 1):
            actions = [(0, first)] if second is None else [(0, first), (1 + first, second)]
            turns: list[Turn] = [([50], [first], FIRST[first])]
            if second is not None:
                turns.append(([60 + first], [second], SECOND[first][second]))
            scores = np.zeros((len(actions), len(LOGITS)))
            chance = 1.0
            for turn, (state, action) in enumerate(actions):
                one = 1 / (1 + math.exp(-LOGITS[state]))
                chance *= one if action else 1 - one
                scores[turn, state] = action - one
            # Any value that only knows what came before the turn; deliberately a bad one.
            values = [0.7, -1.3 if first else 0.2][: len(turns)]
            found.append(Play(played(*turns, values=values), chance, scores))
    return found


def truth(every: list[Play]) -> ndarray:
    """Return the gradient of the expected reward."""
    return sum(p.probability * p.sample.reward * p.scores.sum(axis=0) for p in every)  # type: ignore[return-value]


def expected(section: ConfigSection, every: list[Play]) -> ndarray:
    """Return the expected estimate of a method, over all groups."""
    method = advantage_of(section)
    total = np.zeros(len(LOGITS))
    for chosen in itertools.product(every, repeat=GROUP):
        credit = method(group(*(play.sample for play in chosen)))
        chance = math.prod(play.probability for play in chosen)
        for play, values in zip(chosen, credit, strict=True):
            per_turn = values[play.sample.mask]
            total += chance / GROUP * per_turn @ play.scores
    return total


def cosine(one: ndarray, other: ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


BOTH = pytest.mark.parametrize("ends", [False, True])


@BOTH
def test_the_game_adds_up(ends: bool) -> None:
    every = plays(ends=ends)
    assert sum(play.probability for play in every) == pytest.approx(1)
    assert sum(p.probability * p.scores.sum(axis=0) for p in every) == pytest.approx(0 * LOGITS)
    assert np.linalg.norm(truth(every)) > 0.1


@BOTH
@pytest.mark.parametrize(
    "section",
    [
        RlooAdvantage(),
        SegmentReinforceAdvantage(),
        GaeAdvantage(whiten=False),
        GaeAdvantage(level="turn", whiten=False),
        GaeAdvantage(level="turn", whiten=False, paid="end"),
    ],
    ids=lambda s: s.name,
)
def test_these_are_unbiased(section: ConfigSection, ends: bool) -> None:
    every = plays(ends=ends)
    assert expected(section, every) == pytest.approx(truth(every), abs=1e-9)


@BOTH
def test_a_mean_with_oneself_in_it_only_shortens_the_gradient(ends: bool) -> None:
    every = plays(ends=ends)
    short = (GROUP - 1) / GROUP * truth(every)
    found = expected(GrpoAdvantage(normalise_std=False), every)
    assert found == pytest.approx(short, abs=1e-9)
    episode = expected(GigpoAdvantage(omega=0.0), every)
    assert episode == pytest.approx(short, abs=1e-9)


@BOTH
def test_gigpos_step_term_shortens_each_situations_gradient_by_how_rare_it_is(ends: bool) -> None:
    every = plays(ends=ends)
    both = expected(GigpoAdvantage(gamma=1.0), every)
    step = both - expected(GigpoAdvantage(omega=0.0), every)
    # All are in the first situation. In another, n of the group meet, and n - 1 of n is left:
    # summed over n with its binomial weight, (Gp - 1 + (1 - p)^G) / (Gp).
    meet = [1 / (1 + math.exp(LOGITS[0])), 1 / (1 + math.exp(-LOGITS[0]))]
    left = [(GROUP * p - 1 + (1 - p) ** GROUP) / (GROUP * p) for p in meet]
    factors = np.array([(GROUP - 1) / GROUP, *left])
    assert step == pytest.approx(factors * truth(every), abs=1e-9)


@BOTH
def test_discounting_looks_less_far(ends: bool) -> None:
    every = plays(ends=ends)
    exact = truth(every)
    found = expected(SegmentReinforceAdvantage(gamma=0.0), every)
    # The second turn has nothing after it; the first one no longer sees what it leads to.
    assert found[1:] == pytest.approx(exact[1:], abs=1e-9)
    assert abs(found[0] - exact[0]) > 0.01


@BOTH
@pytest.mark.parametrize(
    "section",
    [
        GaeAdvantage(level="turn", lam=0.0, whiten=False),
        UiS1Advantage(omega=0.0, episode_term="row_reward", normalise_std=False),
        UiS1Advantage(episode_weight=0.0, gamma=1.0, normalise_std=False, match_reward=0.1),
        GrpoAdvantage(),
    ],
    ids=["gae lambda 0", "row reward", "ui_s1 step", "over deviation"],
)
def test_these_are_biased_and_the_comparison_sees_it(section: ConfigSection, ends: bool) -> None:
    every = plays(ends=ends)
    assert cosine(expected(section, every), truth(every)) < 0.9999


@BOTH
def test_whitening_the_returns_of_a_batch_turns_the_gradient(ends: bool) -> None:
    every = plays(ends=ends)
    found = cosine(expected(ReinforcePpAdvantage(), every), truth(every))
    assert 0.8 < found < 0.9999


def test_counting_trajectories_per_turn_turns_the_gradient_where_lengths_differ() -> None:
    section = GigpoAdvantage(omega=0.0, count="turn")
    every = plays(ends=True)
    assert cosine(expected(section, every), truth(every)) < 0.9999
    alike = plays(ends=False)
    assert expected(section, alike) == pytest.approx((GROUP - 1) / GROUP * truth(alike), abs=1e-9)
