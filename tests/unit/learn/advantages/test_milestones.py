"""Milestones: the worked example of SCRL, and the turns that its numbers stand on.

Mutants seen caught: bits that are not multiplied up; the other standard deviation; a span that
begins with the turn that settled the one before; turns after the last milestone credited; a
milestone that nobody settled without its turns.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.advantages.milestones import compare_milestones, milestones, read_milestones
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of
from agentrl.run import build

BITS = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=float)


def sample_of(turns: int = 4, **components: float) -> TrainingSample:
    """Return a trajectory of a prompt token, and a sampled token and an answer per turn."""
    mask = np.array([False, *np.tile([True, False], turns)])
    nodes = np.arange(len(mask))
    return TrainingSample(
        task_id="t",
        sample=0,
        reward=0.0,
        token_ids=nodes,
        mask=mask,
        behaviour=np.zeros(len(mask)),
        spans=spans_of(mask, nodes=nodes, turns=np.maximum(nodes - 1, 0) // 2),
        components=named(components),
    )


def named(parts: Mapping[str, float]) -> dict[str, float]:
    """Return components by their names: b1 is `milestone/1`, t1 its turn."""
    words = {"b": "milestone/", "t": "milestone_turn/"}
    return {words[name[0]] + name[1:]: value for name, value in parts.items()}


def by_turn(*samples: TrainingSample) -> list[list[float]]:
    """Return the advantages of each trajectory, by turn."""
    group = TrainingGroup("t", samples)
    found = milestones([group])
    return [row[sample.sampled].tolist() for row, sample in zip(found, samples, strict=True)]


def test_the_worked_example() -> None:
    third = 3**-0.5
    assert (
        pytest.approx(
            np.array(
                [[third, third, -3 * third, third], [1, -1, -1, 1], [-third] * 3 + [3 * third]]
            )
        )
        == compare_milestones(BITS).T
    )
    assert (
        pytest.approx(
            np.array(
                [
                    [0.5, 0.5, -1.5, 0.5],
                    np.array([1, -1, -1, 1]) * 0.75**0.5,
                    [-0.5, -0.5, -0.5, 1.5],
                ]
            )
        )
        == compare_milestones(BITS, deviation="unbiased").T
    )


def test_a_milestones_number_stands_on_the_turns_on_the_way_to_it() -> None:
    first = sample_of(b1=1.0, t1=1.0, b2=1.0, t2=2.0)
    second = sample_of(b1=1.0, t1=0.0, b2=0.0, t2=3.0)
    third = sample_of(b1=0.0, t1=0.0)
    fourth = sample_of()
    assert by_turn(first, second, third, fourth) == [
        pytest.approx([1.0, 1.0, 3**0.5, 0.0]),
        pytest.approx([1.0] + [-(3**-0.5)] * 3),
        pytest.approx([-1.0] + [-(3**-0.5)] * 3),
        pytest.approx([-1.0] * 4),
    ]


def test_two_that_one_turn_settles_are_the_first_ones() -> None:
    both = sample_of(b1=1.0, t1=2.0, b2=1.0, t2=2.0)
    none = sample_of(b1=0.0, t1=3.0, b2=0.0, t2=3.0)
    assert by_turn(both, none) == [[1.0, 1.0, 1.0, 0.0], [-1.0] * 4]


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8))
def test_one_milestone_at_the_end_is_grpo(rewards: Sequence[float]) -> None:
    found = by_turn(*(sample_of(turns=2, b1=reward, t1=1.0) for reward in rewards))
    spread = np.std(rewards) or 1.0
    plain = np.array(grpo(rewards, normalise_std=False)) / spread
    assert found == [pytest.approx([value] * 2) for value in plain]


def test_without_milestones_nothing_has_credit() -> None:
    assert by_turn(sample_of(), sample_of()) == [[0.0] * 4] * 2


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"b1": 0.5, "t1": 0.0}, "milestone/1 is 0.5, but it is 1.0 or 0.0"),
        ({"b1": 1.0}, "milestone/1 is 1.0, but milestone_turn/1, its turn, is missing"),
        ({"b1": 1.0, "t1": 2.0, "b2": 1.0, "t2": 1.0}, "a turn from 2, .* to 3"),
        ({"b1": 1.0, "t1": 4.0}, "milestone_turn/1 is 4.0, but it is a turn from 0, .* to 3"),
        ({"b1": 1.0, "t1": float("nan")}, "milestone_turn/1 is nan"),
        ({"b1": 0.0, "b2": 0.0, "t2": 1.0}, "milestone_turn/1 is missing"),
    ],
)
def test_a_report_that_contradicts_itself_is_an_error(parts: dict[str, float], fault: str) -> None:
    with pytest.raises(LearnError, match=f"task 't' sample 0: .*{fault}"):
        read_milestones(sample_of(4, **parts), 2)


# At load.


@pytest.mark.parametrize(("kwargs", "is_refused"), [("", True), (", milestones: true", False)])
def test_an_environment_without_milestones_is_refused(
    tmp_path: Path, kwargs: str, is_refused: bool
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        f"env: {{id: code/Mix-v0, kwargs: {{families: chain_sum{kwargs}}}}}\n"
        "learn: {advantage: {name: milestones}}\n"
    )
    config = load_config(path)
    check = partial(build.check_reports, config, build.build_env_factory(config, plays=False)())
    if is_refused:
        with pytest.raises(
            ConfigError, match=r"learn\.advantage\.name is milestones, but code/Mix"
        ):
            check()
    else:
        check()
