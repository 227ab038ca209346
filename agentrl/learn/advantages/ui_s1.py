"""UI-S1: returns that end at a mismatch, compared among turns of one index, and an episode term."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from agentrl.config.learning.advantage import UiS1Advantage
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.turns import place_on_turns, spoken_turns, turn_rewards

Returns = Literal["code", "paper"]
EpisodeTerm = Literal["trajectory_return", "first_return", "row_reward"]


def future_returns(
    rewards: Float[ndarray, " turns"],
    matched: Bool[ndarray, " turns"],
    *,
    gamma: float = 0.5,
    returns: Returns = "code",
) -> Float[ndarray, " turns"]:
    """Return R_t = sum of gamma^(k-t) r_k from t to where the trajectory leaves the expert's.

    `paper` (equation 9) includes the first mismatched turn, `code` ends before it. A mismatched
    turn's own return is its reward; the paper leaves it undefined.
    """
    turn_returns = np.asarray(rewards, dtype=np.float64).copy()
    for t in range(len(turn_returns) - 2, -1, -1):
        if matched[t] and (matched[t + 1] or returns == "paper"):
            turn_returns[t] += gamma * turn_returns[t + 1]
    return turn_returns


def ui_s1(
    groups: Sequence[TrainingGroup],
    *,
    gamma: float = 0.5,
    omega: float = 1.0,
    episode_weight: float = 1.0,
    returns: Returns = "code",
    episode_term: EpisodeTerm = "trajectory_return",
    match_reward: float = 1.0,
    normalise_std: bool = True,
    epsilon: float = 1e-6,
    singleton: Literal["zero", "raw"] = "zero",
) -> TokenAdvantages:
    """Return episode_weight x A_episode + omega x A_step at every token of a turn.

    A_step standardises R_t among the group's turns of index t (equation 10); a turn alone with its
    index gets 0. A_episode (equation 11) standardises one number per trajectory, its turn rewards'
    sum or its first return; with `row_reward`, as the released code does, each turn's own reward
    among all turns of the group. Source: Lu et al. 2025 (arXiv 2509.11543).
    """
    centre = partial(grpo, normalise_std=normalise_std, epsilon=epsilon)
    advantages: TokenAdvantages = []
    for group in groups:
        turns = [spoken_turns(sample) for sample in group.samples]
        rewards = [turn_rewards(sample) for sample in group.samples]
        futures = [np.zeros(len(paid)) for paid in rewards]
        for future, paid, indices in zip(futures, rewards, turns, strict=True):
            matched = paid[indices] >= match_reward
            future[indices] = future_returns(paid[indices], matched, gamma=gamma, returns=returns)
        total = [omega * step for step in _score_by_index(futures, turns, centre)]
        if episode_term == "row_reward":
            parts = _score_by_row(rewards, turns, partial(centre, singleton=singleton))
        else:
            whole = [
                float(future[indices[0]] if episode_term == "first_return" else paid[indices].sum())
                if len(indices)
                else 0.0
                for future, paid, indices in zip(futures, rewards, turns, strict=True)
            ]
            parts = list(centre(whole, singleton=singleton))
        advantages += [
            place_on_turns(sample, step + episode_weight * part)
            for sample, step, part in zip(group.samples, total, parts, strict=True)
        ]
    return advantages


def _score_by_index(
    futures: Sequence[ndarray], turns: Sequence[ndarray], centre: partial[tuple[float, ...]]
) -> list[Float[ndarray, " turns"]]:
    scores = [np.zeros(len(future)) for future in futures]
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for i, indices in enumerate(turns):
        for turn in indices.tolist():
            rows[turn].append(i)
    for turn, reached in rows.items():
        credit = centre([float(futures[i][turn]) for i in reached], singleton="zero")
        for i, value in zip(reached, credit, strict=True):
            scores[i][turn] = value
    return scores


def _score_by_row(
    rewards: Sequence[ndarray], turns: Sequence[ndarray], centre: partial[tuple[float, ...]]
) -> list[Float[ndarray, " turns"]]:
    scores = [np.zeros(len(paid)) for paid in rewards]
    credit = iter(
        centre(
            [float(paid[t]) for paid, indices in zip(rewards, turns, strict=True) for t in indices]
        )
    )
    for row, indices in zip(scores, turns, strict=True):
        row[indices] = [next(credit) for _ in indices]
    return scores


METHOD = LearnMethod(UiS1Advantage, bind_knobs(ui_s1), "Lu et al. 2025, arXiv 2509.11543")
