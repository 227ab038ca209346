"""The numbers of a training step. `docs/learning.md` says what each means and what is healthy."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup


def batch_metrics(
    groups: Sequence[TrainingGroup],
    credited: Sequence[CreditedSample],
    rows: Sequence[CreditedSample],
    *,
    failed: int,
    version: int,
) -> dict[str, float]:
    """Return the metrics known before the weights move: rewards, credit, ages, lengths, failures.

    `groups` are as they were sampled, `credited` a row for each of their samples, `rows` what of
    them trains; `failed` trajectories are in none.
    """
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples])
    sampled = np.array([n for row in credited if (n := row.sample.sampled_tokens)])
    lengths = np.array([len(sample.token_ids) for sample in samples])
    turns = np.array([int(s.turns[s.mask].max(initial=-1)) + 1 for s in samples])
    ages, counts = _count_ages(rows, version=version)
    tokens = int(counts.sum())
    up_to = counts.cumsum()
    middle, old, oldest = (
        ages[np.searchsorted(up_to, -(-percent * tokens // 100))] for percent in (50, 90, 99)
    )
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
        "advantage/zero_fraction": _zero_fraction(groups, credited),
        "age/mean": float((ages * counts).sum() / tokens),
        "age/p50": float(middle),
        "age/p90": float(old),
        "age/p99": float(oldest),
        "age/max": float(ages[-1]),
        "tokens/trained": float(tokens),
        "lengths/context_mean": float(lengths.mean()),
        "lengths/context_max": float(lengths.max()),
        "lengths/sampled_mean": float(sampled.mean()),
        "lengths/sampled_max": float(sampled.max()),
        "lengths/turns_mean": float(turns.mean()),
        "batch/groups": float(len(groups)),
        "batch/trajectories": float(len(samples)),
        "batch/failed": float(failed),
    }


def shaping_metrics(groups: Sequence[TrainingGroup]) -> dict[str, float]:
    """Return the mean of the rewards that credit is made of."""
    rewards = [sample.reward for group in groups for sample in group.samples]
    return {"reward/shaped_mean": float(np.mean(rewards))}


def group_reward_metrics(
    raw: Sequence[TrainingGroup], rewarded: Sequence[TrainingGroup], *, failed: int
) -> dict[str, float]:
    """Return the environment's mean reward for the trajectories that the group reward ranks first,
    over groups, and the number of groups for which it failed.

    Of votes and an environment that pays 1 or 0 the first is the share of labels that are right.
    """
    top_means: list[float] = []
    for group, scored in zip(raw, rewarded, strict=True):
        best = max(scored.rewards)
        top_means.append(
            float(
                np.mean(
                    [r for r, g in zip(group.rewards, scored.rewards, strict=True) if g == best]
                )
            )
        )
    return {
        "group_reward/top_env_reward": float(np.mean(top_means)),
        "group_reward/failed_groups": float(failed),
    }


def selection_metrics(
    credited: Sequence[CreditedSample], rows: Sequence[CreditedSample]
) -> dict[str, float]:
    """Return the shares of trajectories, and of tokens that could train, that were selected."""
    before = [n for row in credited if (n := row.sample.sampled_tokens)]
    return {
        "selection/trajectories": len(rows) / len(before),
        "selection/tokens": sum(row.sample.sampled_tokens for row in rows) / sum(before),
    }


def _count_ages(
    rows: Sequence[CreditedSample], *, version: int
) -> tuple[Int[ndarray, " ages"], Int[ndarray, " ages"]]:
    """Return the ages of tokens that train, rising, and how many tokens have each."""
    age_counts: Counter[int] = Counter()
    for row in rows:
        versions = row.sample.versions[row.sample.mask]
        newest = int(versions.max())
        # A sample's tokens are of a few versions, next to each other.
        for back, count in enumerate(np.bincount(newest - versions).tolist()):
            age_counts[version - newest + back] += count
    ages = sorted(age for age, count in age_counts.items() if count)
    return np.array(ages), np.array([age_counts[age] for age in ages])


def _zero_fraction(groups: Sequence[TrainingGroup], credited: Sequence[CreditedSample]) -> float:
    ends = np.cumsum([len(group.samples) for group in groups])[:-1]
    idle = np.split(np.array([row.is_idle for row in credited]), ends)
    return float(np.mean([group.all() for group in idle]))
