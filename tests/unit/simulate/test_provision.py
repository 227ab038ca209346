"""Capacity under a staleness bound: the worked numbers, what more of something does, the advice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.simulate.engine import EngineSpeed
from agentrl.simulate.provision import (
    HEADROOM,
    TrainerPace,
    find_needed_rate,
    free_staleness,
    pace_of,
    plan_capacity,
    units,
)
from agentrl.simulate.study import StudyResult, StudySetting
from agentrl.simulate.synthetic import agentic

WORKED = TrainerPace(batch=512, train_s=60.0, spread_s=90.0, trajectory_s=60.0, publish_every=2)
"""The example of the specification."""
TIMES = st.floats(0, 500)


@st.composite
def paces(draw: st.DrawFn) -> TrainerPace:
    return TrainerPace(
        batch=draw(st.integers(1, 1000)),
        train_s=draw(st.floats(0.5, 200)),
        spread_s=draw(TIMES),
        trajectory_s=draw(TIMES),
        publish_every=draw(st.integers(1, 6)),
    )


def test_the_worked_numbers() -> None:
    assert free_staleness(WORKED) == 5
    assert find_needed_rate(WORKED, max_staleness=5) == pytest.approx(8.5333, abs=1e-4)
    assert find_needed_rate(WORKED, max_staleness=6) == find_needed_rate(WORKED, max_staleness=5)
    for staleness in (3, 4):
        assert find_needed_rate(WORKED, max_staleness=staleness) == pytest.approx(34.1333, abs=1e-4)
    slow = replace(WORKED, spread_s=120.0)
    assert find_needed_rate(slow, max_staleness=3) == math.inf


@given(paces())
def test_less_staleness_never_needs_less(pace: TrainerPace) -> None:
    free = free_staleness(pace)
    rates = [find_needed_rate(pace, max_staleness=s) for s in (0, free - 1, free, free + 3)]
    assert rates[0] == rates[1] >= rates[2] == rates[3] == pace.batch / pace.train_s


@given(paces(), st.floats(0.1, 100))
def test_what_is_free_rises_with_the_times(pace: TrainerPace, more_s: float) -> None:
    for slower in (
        replace(pace, spread_s=pace.spread_s + more_s),
        replace(pace, trajectory_s=pace.trajectory_s + more_s),
        replace(pace, publish_every=pace.publish_every + 1),
    ):
        assert free_staleness(slower) >= free_staleness(pace) >= pace.publish_every


@given(st.floats(0.01, 100), st.floats(0.01, 10), st.floats(0, 0.9))
def test_units_are_enough_and_one_less_is_not(needed: float, each: float, failed: float) -> None:
    count = units(needed, each=each, failed_fraction=failed)
    assert count is not None
    useful, wanted = each * (1 - failed), needed * (1 + HEADROOM)
    assert count * useful >= wanted * (1 - 1e-6) - 1e-6
    assert count == 1 or (count - 1) * useful < wanted


def test_no_number_is_enough_of_what_always_fails_or_for_a_rate_without_end() -> None:
    assert units(1.0, each=1.0, failed_fraction=1.0) is None
    assert units(math.inf, each=1.0) is None


def test_a_pace_that_cannot_be_is_refused() -> None:
    for wrong in ({"batch": 0}, {"train_s": 0.0}, {"publish_every": 0}, {"spread_s": -1.0}):
        with pytest.raises(ValueError, match=r"greater than 0|at least 0"):
            replace(WORKED, **wrong)


def test_the_advice_of_a_setting() -> None:
    setting = StudySetting(
        trace=agentic(),
        policy=SchedulerPolicy(groups_per_step=4, group_size=4, concurrency=32),
        speed=EngineSpeed(slots=16, pause_s=1.0, load_s=9.0),
        train_s=20.0,
        failure_rate=0.5,
    )
    pace = pace_of(setting)
    assert (pace.batch, pace.spread_s) == (16, 10.0)
    tight, free = plan_capacity(setting)
    assert tight.needed_per_s == pytest.approx(1.6)
    assert free.needed_per_s == pytest.approx(0.8)
    assert free.max_staleness == free_staleness(pace) > 1
    each = setting.speed.tokens_per_s / setting.trace.tokens_mean
    assert free.engines == math.ceil(0.8 * (1 + HEADROOM) / (each * 0.5))
    assert free.envs == math.ceil(0.8 * (1 + HEADROOM) * pace.trajectory_s / 0.5)
    never = replace(setting, speed=replace(setting.speed, load_s=30.0))
    assert next(iter(plan_capacity(never))).engines is None


def test_the_command_gives_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: StudySetting) -> list[StudyResult]:
        return []

    monkeypatch.setattr("agentrl.cli.simulate._search", nothing)
    command = ["simulate", "lognormal", "--steps", "2"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "capacity for a trainer that never waits, with 15% headroom" in ran.output
    assert "engines of 64 slots" in ran.output
    # A trainer that takes no time never waits for less than everything.
    assert "never waits" not in CliRunner().invoke(app, [*command, "--train-s", "0"]).output
