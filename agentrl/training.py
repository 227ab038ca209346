"""START HERE. One training run, from a config to an evaluated policy; this docstring is the map.

    step  what travels                          who does it
    ----  ------------------------------------  -----------------------------------------------
    1     tasks of a split                      sampler.py (Task: task.py)
    2     messages and tool calls               env.py, tool.py, sandbox.py; tool_env.py is the
                                                environment most people need
    3     token ids out, sampled tokens back    policy.py; engine/local.py, with chat/ in between
    4     trajectories as a tree of tokens      trajectory.py, recorded by rollout/episode.py
    5     groups of trajectories                rollout/gate/ (when they run), rollout/pool.py;
                                                contracts in scheduler.py
    6     samples, packed                       learn/batch.py
    7     credit per trajectory                 learn/advantage.py
    8     loss, gradient, weights, version+1    learn/loss.py, correction.py, trainer.py
    9     weights into the engine               Gate.load, in `_Loop._step` below

Beside the flow: first_policy.py (where the weights come from), evaluation/ (how good they are),
wiring.py (config sections to parts), run_folder.py, summary.py and metrics.py (what stays on disk).

Decisions are pure functions over frozen values (scheduler, advantage, loss, correction); the loops
here and in rollout/ are thin. `rollout/` never imports torch; only `learn/` and `engine/` do.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl import wiring
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.section import check_all_read
from agentrl.env import Env
from agentrl.evaluation.heldout import Evaluation
from agentrl.first_policy import FirstPolicy, Policy
from agentrl.metrics import MetricsWriter
from agentrl.progress import Phase, Progress, Quiet
from agentrl.rollout.figures import rollout_figures
from agentrl.rollout.gate.runner import Gate
from agentrl.rollout.pool import Rollouts
from agentrl.run_folder import RunFolder
from agentrl.run_id import new_run_id, using_run_id
from agentrl.sampler import TaskSampler
from agentrl.sandbox import using_sandbox
from agentrl.scheduler import Schedule, check_failures
from agentrl.scope import run_scope
from agentrl.summary import Summary
from agentrl.task import Task
from agentrl.thread import in_thread_to_the_end, run_to_the_end

if TYPE_CHECKING:
    from agentrl.learn.checkpoint import Checkpoints
    from agentrl.learn.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run found; the same is in its `summary.json`."""

    folder: Path
    steps: int
    before: Mapping[str, Any]
    """Held-out evaluation of the first policy: `pass@k`, `ci95`, `n` and more."""
    after: Mapping[str, Any]
    """The same of the trained policy."""
    seconds: Mapping[str, float]
    """Wall time per phase."""


def train(
    config: RunConfig | Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
    resume: bool = False,
) -> RunResult:
    """Train a policy as `config` says, and evaluate it on held-out tasks before and after.

    `resume` goes on from the newest checkpoint in the run's folder. Ctrl-C finishes what cannot be
    left half done, writes a checkpoint and raises `KeyboardInterrupt`.
    """
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides or {})
    wiring.use_threads(config.run.threads)
    make_env = wiring.env_factory(config)
    env = make_env()
    heldout = wiring.evaluation_tasks(config, env)
    sampler = wiring.task_sampler(config, env, heldout)
    with RunFolder.open(config, resume=resume) as folder:
        parts = (folder, make_env, sampler, heldout, progress or Quiet())
        return run_to_the_end(_train(config, *parts, resume=resume))


def warmstart(config: RunConfig, *, progress: Progress | None = None) -> Path:
    """Make the first policy of `config` and no more; return its Hugging Face folder."""
    wiring.use_threads(config.run.threads)
    with RunFolder.open(config, resume=False) as folder:
        summary = Summary(folder.summary)
        run_to_the_end(_first_policy(config, folder, summary, progress or Quiet()))
        return folder.policy


async def _first_policy(
    config: RunConfig, folder: RunFolder, summary: Summary, progress: Progress
) -> Policy:
    with using_sandbox(wiring.sandbox_settings(config.sandbox)):
        async with run_scope():
            first = FirstPolicy(
                config=config,
                folder=folder.policy,
                make_env=wiring.env_factory(config),
                summary=summary,
                progress=progress,
            )
            return await first.open()


async def _train(
    config: RunConfig,
    folder: RunFolder,
    make_env: Callable[[], Env],
    sampler: TaskSampler,
    heldout: Sequence[Task],
    progress: Progress,
    *,
    resume: bool,
) -> RunResult:
    summary = Summary(folder.summary)
    run_id = using_run_id(new_run_id(config.run.name))
    with run_id, using_sandbox(wiring.sandbox_settings(config.sandbox)):
        async with run_scope():
            policy = await _first_policy(config, folder, summary, progress)
            trainer = wiring.trainer(config, policy.model)
            checkpoints = wiring.checkpoints(config, folder.checkpoints, policy.tokenizer)
            sampler.skip(checkpoints.restore(trainer))
            async with wiring.engine(config, policy.model, policy.tokenizer) as engine:
                await engine.load(trainer.weights(), trainer.version)
                rollouts = wiring.rollouts(config, make_env, engine, policy.chat)
                gate = wiring.gate(
                    config,
                    rollouts,
                    sampler.take,
                    on_stuck=progress.say,
                    version=trainer.version,
                )
                loop = _Loop(
                    schedule=wiring.schedule(config),
                    evaluation=wiring.evaluation(config, heldout),
                    progress=progress,
                    summary=summary,
                    sampler=sampler,
                    rollouts=rollouts,
                    gate=gate,
                    trainer=trainer,
                    checkpoints=checkpoints,
                    position=sampler.position,
                )
                with MetricsWriter(folder.path, tensorboard=config.metrics.tensorboard) as writer:
                    writer.truncate_after(trainer.version)
                    if not resume:
                        # A run that is resumed was checked when it began, and reads less of it now.
                        check_all_read(config)
                    async with gate:
                        before, after = await loop.run(writer)
    return RunResult(
        folder=folder.path,
        steps=trainer.version,
        before=before,
        after=after,
        seconds=summary.seconds,
    )


@dataclass(slots=True, kw_only=True)
class _Loop:
    """Steps 1 to 9, again and again. `_train` opens and closes its parts."""

    schedule: Schedule
    evaluation: Evaluation
    progress: Progress
    summary: Summary
    sampler: TaskSampler
    rollouts: Rollouts
    gate: Gate
    trainer: "Trainer"
    checkpoints: "Checkpoints"
    position: int
    """How many tasks the steps that are done have used."""

    async def run(self, writer: MetricsWriter) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evaluate, train and evaluate again; return the two evaluations' summaries."""
        before = self.summary.get("before") or await self._evaluate("before")
        try:
            with self._phase("train", self.schedule.steps) as phase:
                phase.advance(self.trainer.version)
                while self.trainer.version < self.schedule.steps:
                    figures = await self._step()
                    writer.write(self.trainer.version, figures)
                    phase.advance(1, figures)
                    if self.schedule.checkpoints_after(self.trainer.version):
                        self.checkpoints.save(self.trainer, position=self.position)
        except asyncio.CancelledError:
            self.checkpoints.save(self.trainer, position=self.position)
            raise
        return before, await self._evaluate("after")

    async def _step(self) -> dict[str, float]:
        began = time.monotonic()
        batch = await self.gate.batch()
        trees = batch.trees
        check_failures(
            [leaf.outcome for tree in trees for leaf in tree.leaves],
            max_failed_fraction=self.schedule.max_failed_fraction,
        )
        self.position = self.sampler.position
        collected = time.monotonic()
        figures = await in_thread_to_the_end(self.trainer.step, trees, batch.trainable)
        await self.gate.load(self.trainer.weights(), self.trainer.version)
        ended = time.monotonic()
        figures |= {
            "seconds/rollout": collected - began,
            "seconds/learn": ended - collected,
            "tokens_per_s": figures["tokens/trained"] / (ended - began),
            **rollout_figures(trees),
            **self.gate.figures(),
        }
        if self.schedule.evaluates_after(self.trainer.version):
            async with self.gate.held():
                report = await self.evaluation.run(self.rollouts, self.progress)
            figures |= {f"heldout/{name}": value for name, value in report.figures().items()}
        return figures

    async def _evaluate(self, when: str) -> dict[str, Any]:
        with self.summary.timed(f"evaluate {when}"):
            async with self.gate.held():
                report = await self.evaluation.run(self.rollouts, self.progress, f"evaluate {when}")
        self.summary.put(when, report.summary())
        return report.summary()

    @contextmanager
    def _phase(self, name: str, total: int) -> Generator[Phase]:
        with self.summary.timed(name), self.progress.phase(name, total=total) as phase:
            yield phase
