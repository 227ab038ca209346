"""Runs with drafts that are killed and go on from their record: real gate, episodes and store.

Virtual time. To close a gate is, for the store, what a `kill -9` is.
Mutants seen caught: the seed of the sampling noise recorded for the world's; kept counts dropped;
kept counts added in the first step.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import Action, Info, Observation, Step
from agentrl.events.kinds import RolloutAbandoned
from agentrl.policy import Sampling
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.runner import world_seed
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.simulate.clock import run_virtual
from agentrl.store.reader import StoreReader
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from tests.support.drafts import TASK, Stage, World
from tests.support.dying import Dying

POLICY = SchedulerPolicy(mode="sync", groups_per_step=1, group_size=2, concurrency=2)


class SeededWorld(World):
    """Takes a second for a turn, and answers with its seed."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        def answer(turn: int) -> str:
            return f"{seed} {turn}"

        self._answer = answer
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(1.0)
        return await super().step(action)


class Process(Dying):
    """One process of a run with drafts, three seconds a step."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage("hi", "ho", "done")
        self.version = 0
        self.taken = 0
        place = folder / "store"
        self.record = RunStore.open(
            place, StoreSettings(), seed=0, position=lambda: self.taken, resume=place.exists()
        )
        self.taken = self.record.restore({}, step=0) or 0

    def take(self, count: int) -> list[Task]:
        self.taken += count
        return [TASK] * count

    def gate(self) -> RolloutScheduler:
        stage = self.stage
        stage.rollouts = replace(
            stage.rollouts, make_env=lambda: SeededWorld(stage.answer, stage.log)
        )
        stage.play = stage.player(DraftCache(1000), None, "verify", residual=False)
        stage.play.events = self.record.events
        stage.play.adopt(self.record.groups)
        gate = stage.rollouts.scheduler(
            POLICY,
            self.take,
            sampling=Sampling(),
            seed=lambda number, task, sample: 100 + 10 * number + sample,
            play=stage.play,
            events=self.record.events,
            first_group=self.record.next_group or 0,
        )
        gate.adopt(self.record.groups)
        return gate

    async def figures(self, steps: int) -> list[dict[str, float]]:
        """Return what drafts have saved in each of the first steps."""
        found: list[dict[str, float]] = []
        with self.record:
            async with self.gate() as gate:
                for _ in range(steps):
                    await self.step(gate)
                    found.append(self.stage.play.figures())
        return found


@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5, 4.5, 5.5])
def test_a_killed_trajectory_goes_on_in_its_own_world(tmp_path: Path, seconds: float) -> None:
    run_virtual(Process(tmp_path).live_for(seconds))
    resumed = Process(tmp_path)
    run_virtual(resumed.figures(2))
    seeds = {world_seed(5, TASK, sample) for sample in range(2)}
    resets = {entry for entry in resumed.stage.log if entry.startswith("reset")}
    assert resets == {f"reset {seed}" for seed in seeds}
    with StoreReader(tmp_path / "store") as reader:
        assert not [event for _, event in reader.events() if isinstance(event, RolloutAbandoned)]


@pytest.mark.parametrize("seconds", [3.5, 6.5, 8.5])
def test_what_drafts_have_saved_is_counted_once_in_its_step(tmp_path: Path, seconds: float) -> None:
    """Trajectories that have ended before the kill count as if there had been none."""
    whole = run_virtual(Process(tmp_path / "whole").figures(2))
    assert whole[1]["drafts/found"] == 2
    run_virtual(Process(tmp_path / "killed").live_for(seconds))
    steps = int(seconds // 3)
    assert run_virtual(Process(tmp_path / "killed").figures(steps)) == whole[:steps]
