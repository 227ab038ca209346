"""Ctrl-C between a batch and its optimiser step, and within that step: what a resume goes on with.

Virtual time; the real scheduler, curation and loop, a trainer that only counts. Mutants seen
caught: a batch counted as used before the engine sleeps; metrics of an interrupted step dropped, or
those of its rollouts; weights forgotten that lent trajectories need.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.metrics.latency_trace import FILE, trace_bytes
from agentrl.policy import Sampling
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.task_curator import TaskCurator
from agentrl.rollout.curation.vade import VadeTaskSampler
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.topology import RolloutHooks, StepSchedule
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.run.summary import RunSummary
from agentrl.run.train import TrainingLoop
from agentrl.runtime.progress import SilentProgress
from agentrl.runtime.seeds import derive
from agentrl.simulate.clock import run_virtual
from tests.unit.rollout.curation.test_step import Graded, LetterChat, reply

SIZE = 4


class SleepyEngine(ScriptedEngine):
    """Takes some seconds to fall asleep, as a server does."""

    falls_asleep: asyncio.Event
    takes_weights: asyncio.Event

    async def sleep(self) -> None:
        self.falls_asleep.set()
        await asyncio.sleep(5)

    async def wake(self) -> None:
        pass

    async def load(self, weights: Any, version: int) -> None:
        self.takes_weights.set()
        await asyncio.sleep(5)
        await super().load(weights, version)


@dataclass
class CountingTrainer:
    """Counts steps; `stop` is called in each."""

    stop: Any = None
    version: int = 0
    keeps_credit: bool = False
    ema: None = None
    forgotten: list[int] = field(default_factory=list[int])

    def step(self, trees: Any, trainable: Any, weights: Any) -> dict[str, float]:
        self.version += 1
        if self.stop is not None:
            self.stop()
        return {"tokens/trained": 1.0}

    def forget(self, *, before: int) -> None:
        self.forgotten.append(before)


@dataclass
class KeptCheckpoint:
    """The last checkpoint."""

    samplers: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def save(self, trainer: Any, *, samplers: Mapping[str, Any], files: Any) -> None:
        self.samplers = json.loads(json.dumps(samplers))

    def oldest(self) -> None:
        return None


@dataclass
class KeptMetrics:
    """The steps whose metrics were written."""

    steps: list[int] = field(default_factory=list[int])

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        assert figures["tokens/trained"] == 1.0
        assert figures["rollout/sampled_tokens"] > 0
        self.steps.append(step)


@dataclass
class InterruptedRun:
    """One process of a run of one step, which is stopped at a moment."""

    folder: Path
    curated: bool = False
    checkpoint: KeptCheckpoint = field(default_factory=KeptCheckpoint)
    metrics: KeptMetrics = field(default_factory=KeptMetrics)
    trainer: CountingTrainer = field(default_factory=CountingTrainer)

    async def play(self, moment: str) -> None:
        stream = TaskSampler(Graded(), seed=0, limit=9)
        start = stream.mark
        curation = None
        if self.curated:
            rules = CurationRules(sampler=VadeTaskSampler(local_decay=1.0, global_decay=1.0))
            curator = TaskCurator(rules, stream, seed=0, group_size=SIZE, max_turns=8)
            curation = GroupCuration(curator=curator, wanted=2)
        engine = SleepyEngine(reply, token_s=1.0)
        engine.falls_asleep, engine.takes_weights = asyncio.Event(), asyncio.Event()
        limits = EpisodeLimits(context_tokens=64)
        rollouts = RolloutRunner(make_env=Graded, engine=engine, chat=LetterChat(), limits=limits)
        scheduler = rollouts.scheduler(
            SchedulerPolicy(groups_per_step=2, group_size=SIZE),
            stream.take if curation is None else curation.tasks,
            sampling=Sampling(),
            seed=lambda number, task, sample: derive(number, task.id, sample),
            hooks=RolloutHooks() if curation is None else curation.hooks,
        )
        if curation is not None:
            curation.flying = scheduler.list_unfinished
        summary = RunSummary(self.folder / "summary.json")
        summary.put("before", {"pass@1": 0.0})
        unused: Any = None
        trainer: Any = self.trainer
        checkpoints: Any = self.checkpoint
        loop = TrainingLoop(
            schedule=StepSchedule(
                steps=1,
                tasks_per_step=2,
                group_size=SIZE,
                max_failed_fraction=1.0,
                checkpoint_every=1,
                evaluate_every=0,
            ),
            evaluation=unused,
            progress=SilentProgress(),
            summary=summary,
            sampler=stream,
            rollouts=rollouts,
            folder=self.folder,
            scheduler=scheduler,
            trainer=trainer,
            weights=dict[str, Any],
            checkpoints=checkpoints,
            record=None,
            credit=None,
            curation=curation,
            drafts=None,
            growing=None,
            watch=None,
            spans=None,
            used=start,
        )
        writer: Any = self.metrics
        async with scheduler:
            task = asyncio.create_task(loop.run(writer))
            if moment == "sleep":
                await engine.falls_asleep.wait()
                task.cancel()
            elif moment == "load":
                await engine.takes_weights.wait()
                task.cancel()
            else:
                threads = asyncio.get_running_loop()
                self.trainer.stop = lambda: threads.call_soon_threadsafe(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("curated", [False, True])
def test_a_batch_is_used_when_it_trains(tmp_path: Path, *, curated: bool) -> None:
    run = InterruptedRun(tmp_path, curated)
    run_virtual(run.play("sleep"))
    samplers = run.checkpoint.samplers
    assert (run.trainer.version, run.metrics.steps) == (0, [])
    assert (samplers["tasks"]["position"], samplers["trace"]["bytes"]) == (0, 0)
    assert trace_bytes(tmp_path / FILE) == 0
    if curated:
        assert samplers["curation"]["state"]["steps"] == 0


@pytest.mark.parametrize("curated", [False, True])
def test_an_interrupted_step_leaves_its_metrics(tmp_path: Path, *, curated: bool) -> None:
    run = InterruptedRun(tmp_path, curated)
    run_virtual(run.play("step"))
    assert (run.trainer.version, run.metrics.steps) == (1, [1])
    assert run.checkpoint.samplers["trace"]["bytes"] == trace_bytes(tmp_path / FILE) > 0


@pytest.mark.parametrize(("curated", "forgotten"), [(False, [0]), (True, [])])
def test_what_lent_trajectories_need_is_not_forgotten(
    tmp_path: Path, *, curated: bool, forgotten: list[int]
) -> None:
    run = InterruptedRun(tmp_path, curated)
    run_virtual(run.play("load"))
    assert (run.trainer.forgotten, run.metrics.steps) == (forgotten, [1])
