"""GiGPO: a trajectory among its group, and a turn among turns taken in the same situation."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import GigpoAdvantage
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.turns import discount, place_on_turns, spoken_turns, turn_rewards

Anchor = tuple[int, ...]
"""Tokens that a turn answered."""

Row = tuple[int, int]
"""A turn: the place of its trajectory in the group, and its index."""


def gigpo(
    groups: Sequence[TrainingGroup],
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    normalise_std: bool = False,
    epsilon: float = 1e-6,
    similarity: float | None = None,
    count: Literal["trajectory", "turn"] = "trajectory",
    singleton: Literal["zero", "raw"] = "zero",
) -> TokenAdvantages:
    """Return A_episode + omega A_step at every token of a turn.

    A_episode centres the trajectory's reward in its group. A_step centres the turn's return
    sum_l gamma^(l-k) r_l among the group's turns with the same anchor, whatever their index; alone
    with its anchor it is 0. `normalise_std` divides either by its unbiased deviation + epsilon.
    Source: Feng et al. 2025 (arXiv 2505.10978), equations 3-8.
    """
    centre = partial(grpo, normalise_std=normalise_std, epsilon=epsilon)
    advantages: TokenAdvantages = []
    for group in groups:
        repeats = [len(spoken_turns(s)) if count == "turn" else 1 for s in group.samples]
        episode = _score_repeats(
            group.rewards, repeats, centre=partial(centre, singleton=singleton)
        )
        returns = [discount(turn_rewards(sample), gamma) for sample in group.samples]
        steps = [np.zeros(len(values)) for values in returns]
        for rows in clusters(group.samples, similarity=similarity):
            credit = centre([float(returns[i][k]) for i, k in rows], singleton="zero")
            for (i, k), value in zip(rows, credit, strict=True):
                steps[i][k] = value
        advantages += [
            place_on_turns(sample, whole + omega * step)
            for sample, whole, step in zip(group.samples, episode, steps, strict=True)
        ]
    return advantages


def clusters(
    samples: Sequence[TrainingSample], *, similarity: float | None = None
) -> list[list[Row]]:
    """Return the turns of a group by what they answer.

    With `similarity` a turn joins the first cluster whose first anchor is at least that alike.
    """
    rows = [(anchor, (i, k)) for i, s in enumerate(samples) for k, anchor in anchors(s).items()]
    cluster_rows: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for anchor, row in rows:
        key = anchor
        if similarity is not None and anchor not in cluster_rows:
            key = next((a for a in cluster_rows if _alike(a, anchor) >= similarity), anchor)
        cluster_rows[key].append(row)
    return list(cluster_rows.values())


def anchors(sample: TrainingSample) -> dict[int, Anchor]:
    """Return by turn the tokens between what the policy had sampled before and that turn."""
    places = np.flatnonzero(sample.sampled)
    turns, first = np.unique(sample.turns[places], return_index=True)
    begins = places[first]
    before = np.concatenate([[-1], places])[first]
    return {
        int(turn): tuple(sample.token_ids[end + 1 : begin].tolist())
        for turn, begin, end in zip(turns, begins, before, strict=True)
    }


def _alike(one: Hashable, other: Anchor) -> float:
    # Without autojunk=False tokens that are frequent in long observations would not count.
    match = SequenceMatcher(None, one, other, autojunk=False)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return match.ratio()


def _score_repeats(
    rewards: Sequence[float], repeats: Sequence[int], *, centre: partial[tuple[float, ...]]
) -> Float[ndarray, " trajectories"]:
    """Return the credit of rewards of which each stands in the group so many times."""
    credit = centre(np.repeat(rewards, repeats).tolist())
    ends = np.cumsum(repeats)
    return np.asarray([credit[end - 1] if n else 0.0 for end, n in zip(ends, repeats, strict=True)])


METHOD = LearnMethod(GigpoAdvantage, bind_knobs(gigpo), "Feng et al. 2025, arXiv 2505.10978")
