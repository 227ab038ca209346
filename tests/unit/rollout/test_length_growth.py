"""Limits of length that grow with truncation: the rule, what counts, and what a config may say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.events.kinds import GroupRequest
from agentrl.rollout.length_growth import GrowingCaps, LengthGrowth
from agentrl.rollout.length_schedule import LengthCaps
from agentrl.run.build import build_growing_caps
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Tree, Truncated
from tests.support.tiny_run import config_file

GROWTH = LengthGrowth(
    least=LengthCaps(turn_tokens=4, turns=2),
    most=LengthCaps(turn_tokens=16, turns=5),
    factor=1.5,
    above=0.1,
)
TASK = Task(prompt="q", id="t")
CUT = Truncated("turns", 0.0)


def tree_of(*ends: tuple[Outcome, tuple[int, ...]]) -> Tree:
    """Return a tree of trajectories, by how each ended and the sampled tokens of its turns."""
    tree = Tree(TASK)
    root = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
    for sample, (outcome, turns) in enumerate(ends):
        at = root
        for turn, count in enumerate(turns):
            # Half of a turn each, as after a branch within a turn.
            for part in (count // 2, count - count // 2):
                if part:
                    at = tree.add(
                        Node(
                            parent=at,
                            source="sampled",
                            token_ids=(2,) * part,
                            turn=turn,
                            logprobs=(-1.0,) * part,
                            versions=(0,) * part,
                        )
                    )
        tree.end(Leaf(node=at, outcome=outcome, sample=sample))
    return tree


def growths_after(*trees: Tree, caps: LengthCaps = GROWTH.least) -> int:
    growing = GrowingCaps(growth=GROWTH)
    order = caps.apply_to(GroupRequest(task=TASK))
    growing.on_step([(order, tree) for tree in trees])
    return growing.growths


FINE = (Finished(1.0), (3, 3))


def test_eleven_of_a_hundred_grow_and_ten_do_not() -> None:
    assert growths_after(*[tree_of((CUT, (3, 3)), *[FINE] * 9)] * 10) == 0
    more = tree_of((CUT, (3, 3)), (CUT, (3, 3)), *[FINE] * 8)
    assert growths_after(more, *[tree_of((CUT, (3, 3)), *[FINE] * 9)] * 9) == 1
    assert growths_after() == 0


@given(st.integers(0, 20), st.integers(1, 200))
def test_caps_never_fall_and_end_at_the_full_limits(growths: int, tenths: int) -> None:
    growth = LengthGrowth(
        least=GROWTH.least, most=GROWTH.most, factor=1 + tenths / 10, above=GROWTH.above
    )
    caps, more = growth.find_caps(growths), growth.find_caps(growths + 1)
    assert growth.least.turns <= caps.turns <= more.turns <= growth.most.turns
    assert caps.turn_tokens <= more.turn_tokens <= growth.most.turn_tokens
    assert growth.find_caps(0) == growth.least
    assert growth.find_caps(200) == growth.most
    assert replace(growth, factor=math.inf).find_caps(1) == growth.most


def test_caps_grow_by_the_factor() -> None:
    caps = [GROWTH.find_caps(growths) for growths in range(5)]
    assert [(one.turn_tokens, one.turns) for one in caps] == [
        (4, 2),
        (6, 3),
        (9, 5),  # 4.5 turns
        (14, 5),
        (16, 5),
    ]


def test_at_the_full_limits_nothing_is_counted_any_more() -> None:
    growing = GrowingCaps(growth=GROWTH, growths=4)
    order = growing.caps.apply_to(GroupRequest(task=TASK))
    growing.on_step([(order, tree_of((CUT, (16,) * 5)))])
    assert growing.growths == 4


@pytest.mark.parametrize(
    ("outcome", "turns", "is_cut"),
    [
        (CUT, (3, 3), True),
        (Finished(1.0), (3, 4), True),
        (Finished(1.0), (3, 3), False),
        # The environment's own limit, before ours.
        (CUT, (3,), False),
        (Truncated("seconds", 0.0), (3, 3), False),
        (Truncated("tokens", 0.0), (3, 3), False),
        (Truncated("tokens", 0.0), (4,), True),
    ],
)
def test_only_limits_that_can_grow_count(
    outcome: Outcome, turns: tuple[int, ...], is_cut: bool
) -> None:
    assert growths_after(tree_of((outcome, turns))) == is_cut


def test_failures_and_groups_under_shorter_limits_do_not_count() -> None:
    broken = (Failed("env", "broke"), (3, 3))
    assert growths_after(tree_of(broken, broken)) == 0
    assert growths_after(tree_of(*[broken] * 90, *[FINE] * 8, (CUT, (3, 3)))) == 1
    growing = GrowingCaps(growth=GROWTH, growths=1)
    old = GROWTH.least.apply_to(GroupRequest(task=TASK))
    fewer = growing.caps.apply_to(GroupRequest(task=TASK, max_turns=2))
    growing.on_step([(order, tree_of((CUT, (6, 6, 6)))) for order in (old, fewer, None)])
    assert growing.growths == 1


def test_a_limit_that_is_full_makes_the_other_one_grow_no_more() -> None:
    growing = GrowingCaps(growth=GROWTH, growths=2)
    assert (growing.caps.turn_tokens, growing.caps.turns) == (9, 5)
    order = growing.caps.apply_to(GroupRequest(task=TASK))
    growing.on_step([(order, tree_of((CUT, (3,) * 5)))])
    assert growing.growths == 2
    growing.on_step([(order, tree_of((Finished(1.0), (9,))))])
    assert growing.growths == 3


def test_a_config_says_where_limits_begin(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    assert build_growing_caps(load_config(path), None) is None
    config = load_config(path, {"rollout.growth.turns": 1})
    growing = build_growing_caps(config, None)
    assert growing is not None
    assert growing.caps == LengthCaps(turn_tokens=24, turns=1)
    assert growing.growth.most == LengthCaps(turn_tokens=24, turns=3)
    again = build_growing_caps(config, {"growths": 2})
    assert again is not None
    assert again.caps.turns == 2


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"rollout.growth.above": 0.2}, "growth sets neither turn_tokens nor turns"),
        ({"rollout.growth.turns": 3}, r"growth\.turns is 3 and rollout\.max_turns is 3"),
        ({"rollout.growth.turn_tokens": 99}, "turn_tokens is 99 and sampling.max_turn_tokens is"),
        (
            {"rollout.growth.turns": 1, "rollout.schedule.min_turns": 1},
            "rollout.schedule and rollout.growth are both set",
        ),
        (
            {
                "rollout.growth.turn_tokens": 8,
                "rollout.branching": {"topology": "aepo", "probe_tokens": 8},
            },
            r"probe_tokens is 8 and rollout\.growth\.turn_tokens is 8",
        ),
    ],
)
def test_growth_that_cannot_be_is_refused(tmp_path: Path, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(config_file(tmp_path), keys)
