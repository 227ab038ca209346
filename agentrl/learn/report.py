"""The numbers of a training step. `docs/learning.md` says what each means and what is healthy."""

from collections.abc import Sequence

import numpy as np

from agentrl.learn.batch import Row
from agentrl.learn.sample import Group
from agentrl.trajectory import Tree


def batch_metrics(
    groups: Sequence[Group], rows: Sequence[Row], *, trees: Sequence[Tree], version: int
) -> dict[str, float]:
    """Return what is known before the weights move: rewards, credit, ages, lengths, failures."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples])
    sampled = np.array([row.sample.sampled_tokens for row in rows])
    lengths = np.array([len(sample.token_ids) for sample in samples])
    turns = np.array([int(s.turns[s.mask].max(initial=-1)) + 1 for s in samples])
    ages = version - np.concatenate([row.sample.versions[row.sample.mask] for row in rows])
    middle, old, oldest = np.percentile(ages, (50, 90, 99), method="inverted_cdf")
    ended = sum(len(tree.leaves) for tree in trees)
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
        "advantage/zero_fraction": _zero_fraction(groups, rows),
        "age/mean": float(ages.mean()),
        "age/p50": float(middle),
        "age/p90": float(old),
        "age/p99": float(oldest),
        "age/max": float(ages.max()),
        "tokens/trained": float(sampled.sum()),
        "lengths/context_mean": float(lengths.mean()),
        "lengths/context_max": float(lengths.max()),
        "lengths/sampled_mean": float(sampled.mean()),
        "lengths/sampled_max": float(sampled.max()),
        "lengths/turns_mean": float(turns.mean()),
        "batch/groups": float(len(groups)),
        "batch/trajectories": float(len(samples)),
        "batch/failed": float(ended - len(samples)),
    }


def _zero_fraction(groups: Sequence[Group], rows: Sequence[Row]) -> float:
    live = {id(row.sample) for row in rows if not row.is_idle}
    return sum(all(id(s) not in live for s in g.samples) for g in groups) / len(groups)
