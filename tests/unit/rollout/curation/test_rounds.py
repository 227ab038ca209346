"""Allocation in rounds: golden numbers of XRPO and DUET, and a scheduler that plays the rounds.

Mutants seen caught: the half-width of n alone instead of its narrowing; the population instead of
the sample deviation; failures counted as trajectories; cost instead of its root; the last price
tried instead of the last that fits; what is left planned from the sizes of now; a group that grows
before the others of its step have ended.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.rollout.curation.duet import DuetAllocator, allocate_by_spread, measure_spread
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary
from agentrl.rollout.curation.rounds import RoundAllocator
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.xrpo import (
    XrpoAllocator,
    exploration_bonus,
    half_width,
    narrowing,
    share_by_uncertainty,
)
from tests.unit.rollout.curation.test_gate import Rig

HALF = 0.5773502691896258
"""Sample deviation of 1, 0, 1, 0."""


def group(rewards: Sequence[float | None], *, number: int = 0, tokens: int = 10) -> GroupOutcome:
    results = tuple(
        RolloutSummary(
            sample=i, reward=reward, tokens=tokens, turns=1, version=0, logprob=-float(tokens + i)
        )
        for i, reward in enumerate(rewards)
    )
    return GroupOutcome(
        step=0, ordinal=number, task_id=f"t{number}", asked=len(rewards), results=results
    )


# XRPO


def test_golden_narrowing_and_bonus() -> None:
    assert half_width(HALF, 4) == pytest.approx(0.918693, abs=1e-6)
    assert half_width(HALF, 5) == pytest.approx(0.716875, abs=1e-6)
    assert narrowing(HALF, 4) == pytest.approx(0.201818, abs=1e-6)
    assert exploration_bonus(8, 4) == pytest.approx(0.741152, abs=1e-6)
    assert narrowing(HALF, 1) == narrowing(0.0, 4) == 0


def test_the_bonus_decides_at_weight_1_and_the_interval_without_it() -> None:
    """Of three tasks the first is uncertain, and the second has fewer trajectories."""
    rewards = [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0], [0.0] * 4]
    assert share_by_uncertainty(rewards, count=1, exploration=1) == [0, 1, 0]
    assert share_by_uncertainty(rewards, count=1, exploration=0) == [1, 0, 0]
    # D = 0.2018, with the population's deviation 0.1748; bonuses 0.7210 and 0.8326.
    assert share_by_uncertainty([rewards[0], [1.0] * 3], count=1, exploration=1.7) == [1, 0]
    # Bonuses 1.0950, then 0.8940 of the second task; 0.7743 + 0.2018 of the first.
    assert share_by_uncertainty(rewards, count=2, exploration=1) == [1, 1, 0]


def test_the_weight_says_how_unlike_the_tasks_of_a_step_end() -> None:
    """Of 8 tasks with 4 trajectories the rewards of three differ; 32 more are to be shared."""
    mixed = [[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    rewards = [*mixed, *[[1.0] * 4, [0.0] * 4] * 2, [0.0] * 4]
    shares = {
        weight: share_by_uncertainty(rewards, count=32, exploration=weight)
        for weight in (1.0, 0.1, 0.0)
    }
    assert shares == {
        1.0: [4] * 8,
        0.1: [8, 7, 7, 2, 2, 2, 2, 2],
        0.0: [12, 10, 10, 0, 0, 0, 0, 0],
    }


some_rewards = st.lists(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=0, max_size=6), min_size=1, max_size=6
)


@given(some_rewards, st.integers(0, 30), st.floats(0, 4))
def test_all_of_a_round_is_shared_and_a_longer_one_takes_nothing_away(
    rewards: list[list[float]], count: int, exploration: float
) -> None:
    shares = share_by_uncertainty(rewards, count=count, exploration=exploration)
    assert sum(shares) == (count if any(rewards) else 0)
    assert all(share == 0 for share, found in zip(shares, rewards, strict=True) if not found)
    longer = share_by_uncertainty(rewards, count=count + 1, exploration=exploration)
    assert all(more >= share for more, share in zip(longer, shares, strict=True))


@given(st.integers(1, 6), st.integers(0, 40))
def test_equal_tasks_share_equally(tasks: int, count: int) -> None:
    shares = share_by_uncertainty([[1.0, 0.0]] * tasks, count=count, exploration=1)
    assert max(shares) - min(shares) <= 1


# DUET


def test_golden_allocation_stays_within_its_budget() -> None:
    """The published ten halvings give [3, 5, 2, 5], which cost 6400."""
    sizes = allocate_by_spread(
        [0.8, 1.2, 0.5, 1.5], [300, 400, 250, 600], least=[1] * 4, most=32, budget=6200
    )
    assert sizes == [3, 4, 2, 5]


def test_golden_spread() -> None:
    """Rewards 1, 0 and log-probs -10, -11: advantages +-0.70711, products -7.0711 and 7.7782."""
    assert measure_spread(group([1.0, 0.0])) == pytest.approx(7.42461, abs=1e-4)
    assert measure_spread(group([1.0, 1.0])) == measure_spread(group([1.0, None])) == 0


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(1, 500), st.integers(0, 4)), min_size=1, max_size=6
    ),
    st.floats(0, 20_000),
)
def test_more_than_the_least_is_never_over_the_budget(
    tasks: list[tuple[float, float, int]], budget: float
) -> None:
    spreads, costs, least = zip(*tasks, strict=True)
    sizes = allocate_by_spread(spreads, costs, least=least, most=9, budget=budget)
    assert all(fewest <= size <= max(9, fewest) for size, fewest in zip(sizes, least, strict=True))
    cost = sum(size * cost for size, cost in zip(sizes, costs, strict=True))
    assert cost <= budget * (1 + 1e-9) or sizes == [*least]


# Rounds


RULES = [
    XrpoAllocator(first_round=2),
    XrpoAllocator(first_round=3, rounds=4),
    DuetAllocator(first_round=2),
]


def play(rule: RoundAllocator, rewards: list[list[float | None]], base: int) -> list[GroupOutcome]:
    """Play the rounds of a step to their end, on rewards that are given."""
    groups = [group(found[: rule.first_round], number=n) for n, found in enumerate(rewards)]
    while any(more := rule.more(groups, base=base)):
        groups = [
            group(found[: one.asked + extra], number=one.ordinal)
            for one, extra, found in zip(groups, more, rewards, strict=True)
        ]
    return groups


@given(st.sampled_from(RULES), st.integers(1, 5), st.integers(4, 6), st.integers(0, 2**32))
def test_sizes_are_those_of_a_run_that_was_never_killed(
    rule: RoundAllocator, tasks: int, base: int, seed: int
) -> None:
    """A process died after it had let some of the groups grow: the others still do, by as much."""
    random = Random(seed)
    outcomes = [0.0, 1.0, None]
    rewards = [random.choices(outcomes, [4, 4, 1], k=base * tasks) for _ in range(tasks)]
    ends = play(rule, rewards, base)
    grown = sum(one.asked for one in ends)
    assert grown <= base * tasks or isinstance(rule, DuetAllocator)
    if isinstance(rule, XrpoAllocator) and any(one.valid for one in ends):
        assert grown == base * tasks
    before = [group(found[: rule.first_round], number=n) for n, found in enumerate(rewards)]
    sizes = [
        one.asked + more for one, more in zip(before, rule.more(before, base=base), strict=True)
    ]
    torn = [
        group(found[: random.choice([rule.first_round, size])], number=n)
        for n, (found, size) in enumerate(zip(rewards, sizes, strict=True))
    ]
    again = rule.more(torn, base=base)
    if any(one.asked < size for one, size in zip(torn, sizes, strict=True)):
        assert [one.asked + more for one, more in zip(torn, again, strict=True)] == sizes
    assert rule.more(ends, base=base) == [0] * tasks


@pytest.mark.parametrize("rule", RULES)
@given(st.permutations([1.0, 0.0, 1.0, 0.0]), st.integers(1, 12))
def test_a_failure_is_no_observation(
    rule: RoundAllocator, rewards: list[float], count: int
) -> None:
    """Nor does a task of which nothing else is known get more."""
    other, broken = group([1.0, 0.0, 0.0, 0.0], number=1), group([None] * 4, number=2)
    shares = rule.share([group([*rewards[:3], None]), other, broken], count)
    assert shares == [*rule.share([group(rewards[:3]), other], count), 0]


# With a scheduler


async def test_a_step_grows_once_all_of_its_groups_have_ended() -> None:
    """12 trajectories: 3 groups of 2 at first, then 3 and 3 more."""
    asked: list[list[int]] = []

    class Noting(XrpoAllocator):
        def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
            assert [len(one.results) for one in groups] == [one.asked for one in groups]
            asked.append(XrpoAllocator.more(self, groups, base=base))
            return asked[-1]

    rig = Rig(CurationRules(allocation=Noting(first_round=2)))
    for number, curated in enumerate(await rig.steps(2)):
        rounds = asked[3 * number : 3 * number + 3]
        assert [len(counts) for counts in rounds] == [3] * 3, "of all groups at once"
        assert [sum(counts) for counts in rounds] == [3, 3, 0]
        assert curated.figures["curation/trajectories_asked"] == 12
        assert curated.figures["curation/trajectories_extra"] == 0
        for tree in curated.trees:
            assert sorted(leaf.sample for leaf in tree.leaves) == list(range(len(tree.leaves)))


@pytest.mark.parametrize("name", ["xrpo", "duet"])
@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"rollout.mode": "partial"}, ("rollout.mode: partial", "sync")),
        ({"rollout.mode": "async"}, ("rollout.mode: async", "sync")),
        ({"rollout.branching.topology": "aepo"}, ("rollout.branching.topology: aepo",)),
        ({"rollout.redundancy": 1}, ("rollout.redundancy: 1",)),
        ({"rollout.min_valid": 5}, ("rollout.min_valid is 5", "first_round is 4")),
        ({"curation.filter.name": "dapo"}, ("curation.filter.name", "dapo")),
        ({"learn.group_reward.name": "majority"}, ("curation.allocation.name",)),
    ],
)
def test_what_rounds_cannot_be_combined_with_is_named(
    name: str, keys: dict[str, Any], names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config("configs/methods/grpo.yaml", {"curation.allocation.name": name, **keys})
    assert all(part in str(error.value) for part in names)
