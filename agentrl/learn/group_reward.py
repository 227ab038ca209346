"""Group rewards: the contract of the slot, and its methods, which count votes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from agentrl.config.learning.group_reward import DareReward, MajorityReward
from agentrl.errors import LearnError
from agentrl.learn.method import LearnMethod, always, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample, entropies_of

GroupRewardFunction = Callable[[TrainingGroup], Sequence[float]]
"""The group reward slot: a group to one reward per sample, in their order. It takes the place of
all that the environment paid, and is paid at the end."""

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class RewardedGroups:
    """Groups with the rewards of a function, and those for which it failed."""

    groups: tuple[TrainingGroup, ...]
    places: tuple[int, ...]
    """Index of each among the groups that were given."""
    faults: tuple[str, ...]
    """A text for each of the others, which are left out."""


def reward_groups(groups: Sequence[TrainingGroup], function: GroupRewardFunction) -> RewardedGroups:
    """Return the groups with the rewards that `function` gives.

    A group for which it gives another number of rewards, or one that is no finite number, has
    failed.
    Raises `LearnError` if that is every group.
    """
    rewarded: dict[int, TrainingGroup] = {}
    faults: list[str] = []
    for place, group in enumerate(groups):
        rewards = read_rewards(group, function(group))
        if isinstance(rewards, str):
            faults.append(rewards)
            continue
        pairs = zip(group.samples, rewards, strict=True)
        samples = tuple(replace(s, reward=reward, turn_rewards=()) for s, reward in pairs)
        rewarded[place] = replace(group, samples=samples)
    if faults and not rewarded:
        raise LearnError(
            f"learn.group_reward failed for all {len(faults)} groups of a batch, first for "
            f"{faults[0]}; fix the function"
        )
    return RewardedGroups(tuple(rewarded.values()), tuple(rewarded), tuple(faults))


def read_rewards(group: TrainingGroup, returned: object) -> list[float] | str:
    """Return the rewards that a function returned for a group, or a text about their fault."""
    task = f"task {group.task_id!r}"
    # A set has the rewards of none in particular, and in no order.
    if isinstance(returned, str | Mapping | Set) or not isinstance(returned, Iterable):
        return f"{task}: it returned {returned!r:.80}; return a reward per trajectory"
    values = list(cast("Iterable[object]", returned))
    if len(values) != len(group.samples):
        return f"{task}: it returned {len(values)} rewards for {len(group.samples)} trajectories"
    rewards = [read_number(value) for value in values]
    for sample, value, reward in zip(group.samples, values, rewards, strict=True):
        if not math.isfinite(reward):
            return f"{task} sample {sample.sample}: its reward is {value!r:.80}"
    return rewards


def read_number(value: Any) -> float:
    """Return a number as float; NaN for what is none, or too large for one."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def majority(group: TrainingGroup) -> tuple[float, ...]:
    """Return 1 for the most frequent answer of the group, 0 for another and for none.

    Of answers that are equally frequent the one of the lowest sample index wins. A group without
    answers is paid 0, which teaches nothing; TTRL's code takes the text `None` for its answer then.
    Source: Zuo et al. 2025 (TTRL, arXiv 2504.16084) and PRIME-RL/TTRL, where a verifier compares
    with the label; here equal texts are equal answers.
    """
    votes = Counter(sample.answer for sample in group.samples if sample.answer is not None)
    if not votes:
        return (0.0,) * len(group.samples)
    ((label, _),) = votes.most_common(1)
    return tuple(float(sample.answer == label) for sample in group.samples)


def dare(
    group: TrainingGroup, *, minimum_share: float = 0.0, rarity_bonus: float = 0.0
) -> tuple[float, ...]:
    """Return p(y) + rarity_bonus (1 - n(y) / M) (1 - u(y)) for answer y, 0 for none.

    n(y) trajectories of M give it, u(y) is the mean of their mean token entropies, and p(y) is
    n(y) / (u(y) + 1e-8), normalised. Answers with p(y) < `minimum_share` are dropped, and M and p
    are those of the others. Beyond 1 nat u(y) counts as 1 in the bonus, which is not negative
    then: ours. The rest as others report arXiv 2601.21804. A trajectory of which no token trains
    has no entropy, and its group no rewards.
    """
    entropies: dict[str, list[float]] = {}
    for sample in group.samples:
        if sample.answer is not None:
            entropies.setdefault(sample.answer, []).append(_mean_entropy(sample))
    rewards = pay_answers(
        {answer: (len(each), float(np.mean(each))) for answer, each in entropies.items()},
        minimum_share=minimum_share,
        rarity_bonus=rarity_bonus,
    )
    return tuple(
        0.0 if sample.answer is None else rewards.get(sample.answer, 0.0)
        for sample in group.samples
    )


def pay_answers(
    votes: dict[str, tuple[int, float]], *, minimum_share: float, rarity_bonus: float
) -> dict[str, float]:
    """Return DARE's reward of each answer that is not dropped, from its number and entropy."""
    shares = _normalise(votes)
    pool = {answer: votes[answer] for answer, p in shares.items() if not p < minimum_share}
    total = sum(count for count, _ in pool.values())
    return {
        answer: share
        + rarity_bonus * (1 - pool[answer][0] / total) * (1 - min(1.0, pool[answer][1]))
        for answer, share in _normalise(pool).items()
    }


def _normalise(votes: dict[str, tuple[int, float]]) -> dict[str, float]:
    weights = {answer: count / (entropy + _EPSILON) for answer, (count, entropy) in votes.items()}
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}


def _mean_entropy(sample: TrainingSample) -> float:
    if not sample.sampled_tokens:
        return float("nan")
    return float(entropies_of(sample)[sample.mask].mean())


METHODS: tuple[LearnMethod[GroupRewardFunction], ...] = (
    LearnMethod(
        MajorityReward,
        bind_knobs(majority),
        "Zuo et al. 2025 (TTRL), arXiv 2504.16084; PRIME-RL/TTRL",
    ),
    LearnMethod(
        DareReward,
        bind_knobs(dare),
        "after DARE, arXiv 2601.21804, as reported by others",
        always("entropies"),
    ),
)
