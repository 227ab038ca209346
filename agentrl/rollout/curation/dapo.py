"""DAPO's dynamic sampling: a group without a spread of rewards gives its place to another.

Sources: arXiv 2503.14476, the codes of slime and verl; the spread as a standard deviation above a
threshold is UI-S1's (arXiv 2509.11543).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from agentrl.errors import AgentrlError
from agentrl.rollout.curation.outcomes import GroupOutcome, mean

Verdict = Literal["kept", "all_right", "all_wrong", "even", "too_easy", "too_few"]
"""`even`: one reward for all that is neither right nor wrong, or less spread than wanted; where
something else than rewards has to differ, equal ones are neither."""


SpreadOf = Literal["reward", "first_return", "last_turn"]


class NothingToLearn(AgentrlError):
    """Not enough groups of a step can teach anything, and the budget of refills is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingFilter:
    """Groups that train, and limits on requests for others in place of those that do not."""

    min_spread: float = 1e-6
    """Standard deviation (over n) of a group's rewards must be above it; UI-S1 asks for 0.3."""
    spread_of: SpreadOf = "reward"
    """Quantity of each trajectory: its reward, UI-S1's return from the first turn to the first
    mismatch, or the pay of the last turn that any of the group reached, of those that did."""
    gamma: float = 0.5
    """Discount per turn of that return."""
    match_reward: float = 1.0
    """A turn that is paid less is a mismatch, which ends that return and is not in it."""
    right_at: float = 1.0
    """Equal rewards from here on count as all right."""
    wrong_at: float = 0.0
    """Equal rewards up to here count as all wrong."""
    max_mean_reward: float | None = None
    """Groups whose mean reward is at least this are too easy; DARS and DART set 1."""
    min_valid: int = 2
    """Fewest trajectories with a reward, of those that did not fail."""
    singletons: bool = True
    """Keep groups of one trajectory on purpose, which have no spread to measure."""
    max_refills: int = 9
    """Rounds of requests after the first one of a step."""
    short: Literal["train", "stop"] = "train"
    """With fewer groups than wanted at the end: train on them, or stop the run (verl)."""

    @property
    def ways_out(self) -> str:
        """Remedies when too few groups teach something, as the end of a sentence."""
        ways = "raise curation.filter.max_refills or choose tasks closer to the policy's ability"
        return ways if self.short == "train" else f"{ways}, or set curation.filter.short: train"


def verdict(group: GroupOutcome, rule: DynamicSamplingFilter) -> Verdict:
    """Return whether a group trains, or why not. Failures are in no figure of it."""
    rewards = group.rewards
    if rule.singletons and group.asked == 1 and len(rewards) == 1:
        return "kept"
    if len(rewards) < max(rule.min_valid, 1):
        return "too_few"
    measured = measures(group, rule)
    single = rule.spread_of == "last_turn" and len(measured) == 1
    if spread(measured) <= rule.min_spread and not single:
        return _classify_even(rewards, rule) if rule.spread_of == "reward" else "even"
    average = mean(rewards)
    if rule.max_mean_reward is not None and average is not None:
        return "too_easy" if average >= rule.max_mean_reward else "kept"
    return "kept"


def measures(group: GroupOutcome, rule: DynamicSamplingFilter) -> tuple[float, ...]:
    """Return the numbers of a group's trajectories that must differ.

    Source: UI-S1 (arXiv 2509.11543), equation 12 as its code has it: `seq_future_reward` is the
    first return, `seq_final_reward` the last turn.
    """
    if rule.spread_of == "reward":
        return group.rewards
    if rule.spread_of == "first_return":
        return tuple(first_return(result.turn_rewards, rule) for result in group.valid)
    last = max((len(result.turn_rewards) for result in group.valid), default=0)
    ends = (r.turn_rewards[-1] for r in group.valid if last and len(r.turn_rewards) == last)
    return tuple(ends)


def first_return(turn_rewards: Sequence[float], rule: DynamicSamplingFilter) -> float:
    """Return the discounted pay of the turns before the first mismatch, or of a first mismatch."""
    matched = list(takewhile(lambda reward: reward >= rule.match_reward, turn_rewards))
    counted = matched or turn_rewards[:1]
    return sum(reward * rule.gamma**turn for turn, reward in enumerate(counted))


def spread(rewards: Sequence[float]) -> float:
    """Return the standard deviation over n; exactly 0 for equal rewards, whatever the rounding."""
    average = mean(rewards)
    if average is None or max(rewards) == min(rewards):
        return 0.0
    variance = mean((reward - average) ** 2 for reward in rewards)
    return (variance or 0.0) ** 0.5


def _classify_even(rewards: Sequence[float], rule: DynamicSamplingFilter) -> Verdict:
    if min(rewards) >= rule.right_at:
        return "all_right"
    return "all_wrong" if max(rewards) <= rule.wrong_at else "even"
