"""What the benchmark of training on desktops reads out of runs, and what it plays.

Mutants seen caught: time outside of the window counted, or taken off; one desktop for all; an
episode forgotten by the next reset, or a fork that is its parent's; the first step's tokens
counted; a small policy's replies; a trainer that costs as much as the engine; a ratio upside down.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.config.load import load_config
from agentrl.env import say
from agentrl.metrics.latency_trace import TrajectoryCost, TurnCost, trace_of
from agentrl.run.build import build_env_factory
from benchmarks import gui_training, metered
from benchmarks.gui_training import (
    GROUP,
    GROUPS,
    MODES,
    SCALES,
    STEP_GROUP,
    STEP_TASKS,
    large,
    measured,
    setting,
    virtual,
)
from benchmarks.harness import Benchmark
from benchmarks.metered import Episode, Metered, inside, read_episodes, utilisation

COSTS = [
    TrajectoryCost(
        prompt_tokens=7,
        reset_s=3.0 + i,
        turns=tuple(TurnCost(tokens=5 * (i + 1), step_s=1.0, reply_tokens=9) for _ in range(i + 1)),
    )
    for i in range(4)
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = SimpleNamespace(at_s=0.0)
    monkeypatch.setattr(metered, "time", SimpleNamespace(time=lambda: now.at_s))

    def go(seconds: float) -> None:
        now.at_s += seconds

    return go


def test_what_lies_in_a_window() -> None:
    assert [inside((2.0, 5.0), window) for window in ((0.0, 9.0), (3.0, 4.0), (4.0, 9.0))] == [
        3.0, 1.0, 1.0,
    ]  # fmt: skip
    assert inside((2.0, 5.0), (6.0, 9.0)) == 0.0


def test_utilisation_counts_places_and_the_window_only() -> None:
    episodes = [
        Episode(held=(0.0, 10.0), worked=((0.0, 4.0), (8.0, 10.0))),
        Episode(held=(6.0, 16.0), worked=((15.0, 16.0),)),
    ]
    assert utilisation(episodes, (2.0, 12.0), 2) == pytest.approx((14 / 20, 4 / 20))
    with pytest.raises(ValueError, match="no time in it"):
        utilisation(episodes, (2.0, 2.0), 2)


async def test_a_metered_environment_plays_as_it_is_and_says_when(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    log = tmp_path / "log"
    env = Metered(world="reasoning/ChainSum-v0", log=str(log))
    task = next(iter(env.tasks("train", seed=0)))
    episode = await play_gold(env, task)
    assert episode.reward == 1.0
    clock(5.0)
    await env.reset(options={"task": task})
    clock(2.0)
    await env.step(say("wrong"))
    clock(1.0)
    await env.close()
    await env.close()
    first, second = read_episodes(log)
    assert first == Episode(held=(0.0, 5.0), worked=((0.0, 0.0), (0.0, 0.0)))
    assert (second.held, len(second.worked)) == ((5.0, 8.0), 2)


async def test_a_fork_is_an_episode_of_its_own(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    log = tmp_path / "log"
    env = Metered(world="reasoning/ChainSum-v0", log=str(log))
    task = next(iter(env.tasks("train", seed=0)))
    await env.reset(options={"task": task})
    clock(1.0)
    fork = await env.fork()
    clock(1.0)
    await fork.step(say("x"))
    await fork.close()
    clock(1.0)
    await env.close()
    assert [one.held for one in read_episodes(log)] == [(1.0, 2.0), (0.0, 3.0)]


def test_a_run_is_measured_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    run = tmp_path / "sync-0"
    run.mkdir()
    lines = [{"time": 100.0 + 10 * i, "tokens/trained": 50.0} for i in range(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spans = {"held": [90.0, 110.0], "worked": [[95.0, 105.0]]}
    (tmp_path / "sync-0.meter").write_text(json.dumps(spans) + "\n")
    found = measured(run)
    whole_s = 20.0 * gui_training.PLACES
    assert (found.held, found.worked) == pytest.approx((10 / whole_s, 5 / whole_s))
    assert found.trajectories_per_s == pytest.approx(2 * STEP_TASKS * STEP_GROUP / 20)
    assert found.tokens_per_s == pytest.approx(5.0)


def test_every_mode_is_a_config(tmp_path: Path) -> None:
    given: list[Any] = []

    def start(command: str, keys: dict[str, str], config: Path) -> None:
        given.append(load_config(config, [f"{key}={value}" for key, value in keys.items()]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gui_training, "agentrl", start)
        gui_training.first_policy(tmp_path, quick=True)
        (tmp_path / "first" / "policy").mkdir(parents=True)
        for mode in MODES:
            gui_training.train(mode, tmp_path / "first" / "policy", tmp_path, steps=4, round_=0)
    first, sync, decoupled = given
    assert isinstance(build_env_factory(sync)(), Metered)
    assert (first.warmstart.guess_fraction, first.warmstart.demonstrations) == (0.0, 24)
    assert (sync.rollout.mode, decoupled.rollout.mode) == ("sync", "async")
    assert sync.env.kwargs | {"log": ""} == decoupled.env.kwargs | {"log": ""}
    assert sync.env.kwargs["templates"] == first.env.kwargs["templates"]
    assert sync.rollout.concurrency == gui_training.PLACES
    assert sync.env.kwargs["desktop"]["desktops"] >= gui_training.PLACES


def test_a_large_policy_says_more_and_its_desktops_take_as_long() -> None:
    trace = trace_of("made", COSTS)
    made = large(trace)
    said = [turn.tokens for cost in made.trajectories for turn in cost.turns]
    assert sum(said) / len(said) == pytest.approx(gui_training.TURN_TOKENS, rel=0.01)
    assert made.env_s_mean == trace.env_s_mean
    assert [len(c.turns) for c in made.trajectories] == [1, 2, 3, 4]
    assert {turn.reply_tokens for c in made.trajectories for turn in c.turns} == {1500}


def test_a_setting_is_darts_batch_and_a_trainer_by_its_share() -> None:
    trace = large(trace_of("made", COSTS))
    for scale in SCALES:
        made = setting(trace, scale, steps=4)
        assert (made.policy.groups_per_step, made.policy.group_size) == (GROUPS, GROUP) == (8, 8)
        assert made.policy.concurrency == made.speed.slots == scale.desktops
        assert made.policy.max_staleness == scale.staleness
        assert made.speed.token_s(made.speed.slots) == pytest.approx(gui_training.STEP_S)
        alone_s = 64 * trace.tokens_mean / made.speed.tokens_per_s
        assert made.train_s == pytest.approx(scale.train_share * alone_s)


def test_in_virtual_time_decoupling_never_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gui_training, "SCALES", SCALES[:2])
    bench = Benchmark("gui_training", rounds=1)
    virtual(bench, trace_of("made", COSTS), steps=4)
    rows = {row.metric: row for row in bench.rows}
    assert len(rows) == 12
    for scale in SCALES[:2]:
        training, work, held = (
            rows[f"virtual, {scale.name}: {what}"] for what in ("training", "work", "held")
        )
        assert training.value > 1.0
        assert work.value > 1.0
        assert (training.goal, work.goal, held.goal) == (1.9, None, 5.5)
