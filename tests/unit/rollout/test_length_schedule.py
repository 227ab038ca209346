"""Limits of length on a schedule: the waves, what is begun under them, a kill, a whole run.

Mutants seen caught: the stair the other way round; a rise that falls, a fall half as fast; an order
given more turns than it had; the caps of the first step in every step; tokens of an order ignored,
not read back, or not adopted; the least turns not configured; no figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.events.kinds import GroupRequest
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.length_schedule import (
    LengthCaps,
    LengthSchedule,
    Wave,
    cap_figures,
    cap_orders,
    crest,
)
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.batch import RolloutBatch
from agentrl.rollout.scheduler.policy import Mode, SchedulerPolicy
from agentrl.run.build import build_length_schedule
from agentrl.runtime.seeds import derive
from agentrl.simulate.clock import run_virtual
from agentrl.task import Task
from agentrl.trajectory import Tree
from tests.support.tiny_run import config_file
from tests.unit.rollout.curation.test_gate import Endless
from tests.unit.rollout.curation.test_kept import Process
from tests.unit.rollout.curation.test_step import LetterChat

WAVES: tuple[Wave, ...] = ("cosine", "stair", "stair_cosine")
SIRI: dict[str, Any] = {
    "least": LengthCaps(turn_tokens=8192, turns=4),
    "most": LengthCaps(turn_tokens=16384, turns=8),
    "period_steps": 640,
}
TASK = Task(prompt="q", id="t")


def schedule(wave: Wave = "stair", **keys: Any) -> LengthSchedule:
    return LengthSchedule(wave=wave, **{**SIRI, **keys})


@pytest.mark.parametrize(
    ("wave", "expected"),
    [
        (
            "cosine",
            {0: 16384, 80: 15184, 160: 12288, 320: 8192, 480: 12288, 640: 16384, 720: 15184},
        ),
        (
            "stair_cosine",
            {
                0: 16384,
                80: 16384,
                160: 12288,
                240: 8192,
                320: 8192,
                400: 8192,
                480: 12288,
                560: 16384,
                600: 16384,
                640: 16384,
                800: 12288,
            },
        ),
        ("stair", {0: 8192, 319: 8192, 320: 16384, 639: 16384, 640: 8192}),
    ],
)
def test_the_caps_of_the_specification(wave: Wave, expected: dict[int, int]) -> None:
    found = {step: schedule(wave).find_caps(step).turn_tokens for step in expected}
    assert found == expected
    turns = {step: schedule(wave).find_caps(step).turns for step in expected}
    assert turns == {step: round(tokens / 2048) for step, tokens in expected.items()} | {
        step: 7 for step in expected if expected[step] == 15184
    }


@given(st.sampled_from(WAVES), st.integers(1, 50), st.integers(0, 200))
def test_a_wave_stays_in_its_bounds_and_comes_again(wave: Wave, period: int, step: int) -> None:
    found = crest(wave, step, period_steps=period)
    assert 0 <= found <= 1
    assert crest(wave, step + period, period_steps=period) == found


@given(st.integers(1, 30), st.integers(0, 99))
def test_what_goes_down_comes_up_the_same_way(eighth: int, step: int) -> None:
    period = 8 * eighth
    for wave in ("cosine", "stair_cosine"):
        up, down = (
            crest(wave, s % period, period_steps=period) for s in (step, period - step % period)
        )
        assert up == pytest.approx(down, abs=1e-12)


def test_an_order_with_less_turns_keeps_them() -> None:
    caps = LengthCaps(turn_tokens=5, turns=3)
    orders = [GroupRequest(task=TASK, max_turns=turns, trajectories=9) for turns in (None, 2, 3, 8)]
    found = [caps.apply_to(order) for order in orders]
    assert [(o.max_turns, o.max_turn_tokens, o.trajectories) for o in found] == [
        (3, 5, 9),
        (2, 5, 9),
        (3, 5, 9),
        (3, 5, 9),
    ]
    assert all(order.task is TASK for order in found)


def test_figures_are_those_of_the_groups_that_train() -> None:
    orders = [
        GroupRequest(task=TASK, max_turns=turns, max_turn_tokens=2 * turns) for turns in (2, 4)
    ]
    assert cap_figures([*orders, None]) == {"caps/turn_tokens": 6.0, "caps/turns": 3.0}
    assert cap_figures([GroupRequest(task=TASK, max_turns=3), None]) == {}


# --- behind the gate ------------------------------------------------------------------------------


def babble(request: GenerateRequest) -> Sequence[int]:
    """Never end a turn of one's own will."""
    return (1,) * request.max_new_tokens


def spoken(tree: Tree) -> set[tuple[int, ...]]:
    """Return how many tokens the turns of each trajectory have."""
    found: set[tuple[int, ...]] = set()
    for trajectory in tree.trajectories():
        turns = [t for t, m in zip(trajectory.turns, trajectory.mask, strict=True) if m]
        found.add(tuple(turns.count(turn) for turn in sorted(set(turns))))
    return found


@pytest.mark.parametrize("mode", ["sync", "partial", "async"])
async def test_what_is_begun_at_a_step_keeps_the_caps_of_that_step(mode: Mode) -> None:
    rollouts = RolloutRunner(
        make_env=Endless,
        engine=ScriptedEngine(babble),
        chat=LetterChat(),
        limits=EpisodeLimits(context_tokens=640, max_turns=5, max_turn_tokens=9),
    )
    waves = schedule(
        least=LengthCaps(turn_tokens=2, turns=1),
        most=LengthCaps(turn_tokens=5, turns=3),
        period_steps=2,
    )
    opened: list[int] = []

    def tasks(count: int) -> list[Task]:
        opened.extend([rollouts.engine.version] * count)
        return [Task(prompt="q", id=f"t{len(opened) - count + i}") for i in range(count)]

    gate = rollouts.scheduler(
        SchedulerPolicy(
            mode=mode,
            groups_per_step=2,
            group_size=2,
            over_provision=1.5 if mode == "partial" else 1.0,
            concurrency=6,
        ),
        cap_orders(tasks, lambda: waves.find_caps(rollouts.engine.version)),
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
    )
    batches: list[RolloutBatch] = []
    async with gate:
        for version in range(1, 5):
            batches.append(await gate.next_batch())
            await gate.load_weights(None, version)
    expected = {0: {(2,)}, 1: {(5, 5, 5)}}
    seen: set[int] = set()
    for batch in batches:
        for tree in batch.trees:
            began = opened[int(tree.task.id[1:])] % 2
            seen.add(began)
            assert spoken(tree) == expected[began]
    assert seen == {0, 1}


def test_caps_hold_after_a_kill(tmp_path: Path) -> None:
    """Begun under 3 tokens and 2 turns; the run that goes on would give 256 and 8."""
    waves = schedule(
        least=LengthCaps(turn_tokens=3, turns=2), most=LengthCaps(turn_tokens=4, turns=3)
    )

    @dataclass
    class Short(Process):
        def orders(self, count: int) -> list[GroupRequest]:
            return cap_orders(super().orders, lambda: waves.find_caps(0))(count)

    first = Short(tmp_path, CurationRules(), speak=babble, env=Endless)
    run_virtual(first.live_for(4))
    process = Process(tmp_path, CurationRules(), speak=babble, env=Endless)
    assert {(g.request.max_turns, g.request.max_turn_tokens) for g in process.record.groups} == {
        (2, 3)
    }
    assert process.record.turns > 0
    (curated,) = run_virtual(process.steps(1))
    for tree in curated.trees:
        assert spoken(tree) == {(3, 3)}


def test_what_is_not_scheduled_stays(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    assert build_length_schedule(load_config(path)) is None
    found = build_length_schedule(load_config(path, {"rollout.schedule.min_turns": 1}))
    assert found is not None
    assert found.least == LengthCaps(turn_tokens=24, turns=1)
    assert found.most == LengthCaps(turn_tokens=24, turns=3)
    assert (found.wave, found.period_steps) == ("cosine", 640)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"wave": "stair"}, "neither min_turn_tokens nor min_turns"),
        ({"min_turns": 3}, "min_turns is 3 and rollout.max_turns is 3"),
        ({"min_turn_tokens": 99}, "min_turn_tokens is 99 and sampling.max_turn_tokens is 24"),
    ],
)
def test_a_schedule_that_changes_nothing_is_refused(
    tmp_path: Path, keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(
            config_file(tmp_path), {f"rollout.schedule.{k}": value for k, value in keys.items()}
        )


def test_a_probe_has_to_fit_the_shortest_turn(tmp_path: Path) -> None:
    keys = {
        "rollout.branching.topology": "aepo",
        "rollout.branching.probe_tokens": 8,
        "rollout.schedule.min_turn_tokens": 8,
    }
    with pytest.raises(ConfigError, match=r"probe_tokens is 8 and rollout\.schedule"):
        load_config(config_file(tmp_path), keys)
