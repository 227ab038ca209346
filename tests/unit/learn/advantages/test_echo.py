"""ECHO's shaping: the published numbers, and what it is without its knobs.

Mutants seen caught: a signal without its limit; doubt of the token's log-prob instead of its
probability; the multiplier added instead of multiplied.
"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.advantage import per_trajectory
from agentrl.learn.advantages.echo import echo, scale_credit
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of

CREDIT = per_trajectory(partial(grpo, normalise_std=False))


def group_of(*rewards: float, probabilities: float = 0.5) -> TrainingGroup:
    """Return trajectories of a prompt token and two sampled ones, unlike in entropy."""
    samples = [
        TrainingSample(
            task_id="t",
            sample=at,
            reward=reward,
            token_ids=np.arange(3),
            mask=np.array([False, True, True]),
            behaviour=np.array([math.nan, *[math.log(probabilities)] * 2]),
            spans=spans_of(np.array([False, True, True]), nodes=np.array([0, 1, 1])),
            entropies=np.array([math.nan, 1.0, 3.0]),
        )
        for at, reward in enumerate(rewards)
    ]
    return TrainingGroup("t", tuple(samples))


def test_the_worked_examples() -> None:
    scale = partial(scale_credit, multiplier=0.1, limit=2.0)
    credit = np.array([0.5, 0.5, -0.5])
    assert scale(credit, np.array([1.5, 5.0, -5.0])) == pytest.approx([0.575, 0.6, -0.4])


def test_the_signal_is_whitened_entropy_and_doubt() -> None:
    group = group_of(1.0, 0.0)
    sure = replace(group.samples[1], behaviour=np.array([math.nan, 0.0, 0.0]))
    group = replace(group, samples=(group.samples[0], sure))
    found = echo([group], credit=CREDIT)
    # Of both signals half of the four tokens lie above their mean and half below, by as much.
    z = 1 / math.sqrt(4 / 3)
    first = [0.5 * (1 + 0.1 * (z * way + z)) for way in (-1, 1)]
    second = [-0.5 * (1 + 0.1 * (z * way - z)) for way in (-1, 1)]
    assert found[0][1:] == pytest.approx(first, rel=1e-6)
    assert found[1][1:] == pytest.approx(second, rel=1e-6)
    only = echo([group], credit=CREDIT, doubt_weight=0.0)
    assert only[1][1:] == pytest.approx([-0.5 * (1 - 0.1 * z), -0.5 * (1 + 0.1 * z)], rel=1e-6)


def test_doubt_is_one_less_the_probability() -> None:
    group = group_of(1.0, 0.0)
    last = replace(group.samples[1], behaviour=np.array([math.nan, math.log(0.25), 0.0]))
    group = replace(group, samples=(group.samples[0], last))
    found = echo([group], credit=CREDIT, entropy_weight=0.0)
    doubts = np.array([0.5, 0.5, 0.75, 0.0])
    z = (doubts - doubts.mean()) / doubts.std(ddof=1)
    assert [*found[0][1:], *found[1][1:]] == pytest.approx(
        np.array([0.5, 0.5, -0.5, -0.5]) * (1 + 0.1 * z), rel=1e-6
    )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0.01, 1))
def test_without_its_multiplier_it_is_grpo(rewards: list[float], probability: float) -> None:
    group = group_of(*rewards, probabilities=probability)
    found = echo([group], credit=CREDIT, multiplier=0.0)
    for one, other in zip(found, CREDIT([group]), strict=True):
        assert one[1:].tolist() == other[1:].tolist()


def test_knobs_that_turn_an_advantage_round_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    section = "{name: echo, multiplier: 0.5, limit: 2.0}"
    path.write_text(f"env: {{id: demo/Multiply-v0}}\nlearn: {{advantage: {section}}}\n")
    with pytest.raises(ConfigError, match=r"learn\.advantage\.multiplier is 0\.5"):
        load_config(path)
