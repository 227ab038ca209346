"""START HERE. One training run, from a config to an evaluated policy; this docstring is the map.

    step  what travels                          who does it
    ----  ------------------------------------  -----------------------------------------------
    1     tasks of a split                      rollout/task_sampler.py (`Task`: task.py)
    2     messages and tool calls               env.py, tool.py, sandbox.py; authoring/tool_env.py
                                                is the environment most people need
    3     token ids out, sampled tokens back    policy.py; engine/local.py, with chat/ in between
    4     trajectories as a tree of tokens      trajectory.py, recorded by rollout/episode.py
    5     groups of trajectories                rollout/scheduler/ (when they run),
                                                rollout/runner.py (how one is played)
    6     samples, laid out for the model       learn/sample.py, micro_batch.py, layouts/
    7     credit per token                      learn/group_reward.py and shaping.py (rewards),
                                                learn/advantage.py, and a method of advantages/
    8     loss, gradient, weights, version+1    learn/trainer.py; contracts in loss.py, proximal.py,
                                                correction.py, each with a package of methods
    9     weights into the engine               `TrainingLoop._step` below, with weight_sync/

cluster/ has the environments of step 2 in workers on other machines, engine/remote/ the engines of
step 3 in processes of their own, engine/endpoint/ asks servers that somebody else started,
learn/sharded/ is the trainer of step 8 on several devices. gateway/ makes an agent program an
environment; models/vision/ is what images become in steps 3, 6 and 8.

Beside the flow, in this folder: preflight.py (what a config needs, before anything heavy is
imported), initial_policy.py (where the weights come from), build.py and extensions/ (config
sections to parts), evaluate.py and reverify.py (other commands made of the same parts), folder.py
and summary.py (what stays on disk). Outside: evaluation/ (how good a policy is), events/ and store/
(what survives a crash), metrics/, simulate/ (the same scheduler in virtual time), grading/
(checking apart from the episode), runtime/ (processes, files, threads and this machine).

Decisions are pure functions over frozen values (scheduler, advantage, loss, correction); the loops
here and in rollout/ are thin. `rollout/` never imports torch; only `learn/` and `engine/` do.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.section import check_all_read
from agentrl.env import Env
from agentrl.errors import ConfigError, LearnError
from agentrl.evaluation.held_out import HeldOutEvaluation
from agentrl.evaluation.reports import (
    FOLDER,
    compare_reports,
    read_report,
    read_summary,
    save_report,
)
from agentrl.events.kinds import GroupsTrained
from agentrl.metrics.diagnostics import RunDiagnostics
from agentrl.metrics.latency_trace import FILE as TRACE_FILE
from agentrl.metrics.latency_trace import append_costs, cut_trace, trace_bytes
from agentrl.metrics.rollout_metrics import rollout_figures
from agentrl.metrics.similarity import likeness_figures
from agentrl.metrics.spans import SpanExporter
from agentrl.metrics.writer import MetricsWriter
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.task_curator import CuratedBatch
from agentrl.rollout.drafts.runner import DraftingRunner
from agentrl.rollout.length_growth import GrowingCaps
from agentrl.rollout.length_schedule import cap_figures
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.batch import RolloutBatch
from agentrl.rollout.scheduler.deadlines import BlockDeadline, SchedulerDeadlines
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.topology import StepSchedule, check_failures
from agentrl.rollout.scheduler.work import RolloutWork, reporting
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.run import build
from agentrl.run.build_engine import build_device_placement, build_engine
from agentrl.run.extensions import branching
from agentrl.run.extensions.curation import (
    DRAFTS,
    SUCCESSES,
    build_curation,
    build_drafts,
    curation_files,
    draft_files,
)
from agentrl.run.folder import RunFolder
from agentrl.run.initial_policy import InitialPolicyBuilder
from agentrl.run.policy_model import PolicyModel, check_adapters
from agentrl.run.preflight import check_training
from agentrl.run.summary import RunSummary
from agentrl.runtime.atomic_files import first_disk_error
from agentrl.runtime.heap import frozen_heap
from agentrl.runtime.machine import set_thread_count
from agentrl.runtime.progress import ProgressPhase, RunProgress, SilentProgress
from agentrl.runtime.run_id import new_run_id, using_run_id
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import finish_in_thread, run_to_the_end
from agentrl.sandbox import using_sandbox
from agentrl.store.run import RunStore
from agentrl.store.token_credit import TokenCreditLog
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.learn.checkpoint import CheckpointManager
    from agentrl.learn.trainer import PolicyTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Result of a run; the same is in its `summary.json`."""

    folder: Path
    """Folder of the run, with its checkpoints, metrics and policy."""
    steps: int
    """Number of optimiser steps, those before a resume among them."""
    before: Mapping[str, Any]
    """Held-out evaluation of the first policy: `pass@k`, `ci95`, `n` and more."""
    after: Mapping[str, Any]
    """The same of the trained policy."""
    seconds: Mapping[str, float]
    """Wall time per phase, in seconds."""


def train(
    config: RunConfig | Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    progress: RunProgress | None = None,
    resume: bool = False,
    cut_damaged: bool = False,
) -> TrainingResult:
    """Train a policy as `config` says, and evaluate it on held-out tasks before and after.

    Args:
        config: A YAML file, or a config that was loaded already; docs/configuration.md has every
            key.
        overrides: Values by dotted key, laid over the config, such as `{"run.steps": 200}`.
        progress: Object that is told of phases and steps, such as that of `show_progress`; None
            shows nothing.
        resume: Go on from the newest checkpoint in the run's folder, with every turn that was
            played since.
        cut_damaged: Give up what lies behind damage in the store of a run that is resumed.

    Returns:
        The folder of the run, and both evaluations.

    Raises:
        ConfigError: The config has a problem, this machine lacks something it asks for, or the
            run's folder holds another run. Nothing was trained.
        LearnError: The trainer cannot go on, such as with a gradient that is not finite.
        AgentrlError: Something else ended the run, such as too many trajectories that failed, or a
            store that cannot be used.
        KeyboardInterrupt: Ctrl-C. What cannot be left half done is finished, and a checkpoint
            written.
    """
    if cut_damaged and not resume:
        raise ConfigError(
            "cut_damaged (--cut-damaged) repairs the store of a run that is resumed; add --resume"
        )
    config = load_config(config, overrides or {})
    progress = progress or SilentProgress()
    check_training(config, progress.say)
    make_env = build.build_env_factory(config)
    set_thread_count(config.run.threads)
    check_adapters(config)
    env = make_env()
    build.check_reports(config, env)
    heldout = build.build_evaluation_tasks(config, env, progress.say)
    build.check_splits(config, env, heldout)
    sampler = build.build_task_sampler(config, env, heldout)
    place = config.run.folder / config.run.name
    with first_disk_error(place), RunFolder.open(config, resume=resume) as folder:
        parts = (folder, make_env, sampler, heldout, progress)
        result = run_to_the_end(_train(config, *parts, resume=resume, cut_damaged=cut_damaged))
        return replace(result, folder=place)


def warmstart(
    config: RunConfig, *, resume: bool = False, progress: RunProgress | None = None
) -> Path:
    """Make the first policy of `config` and no more; return its Hugging Face folder.

    `resume` goes on in the folder of one that was interrupted.
    """
    progress = progress or SilentProgress()
    check_training(config, progress.say)
    set_thread_count(config.run.threads)
    check_adapters(config)
    place = config.run.folder / config.run.name
    with first_disk_error(place), RunFolder.open(config, resume=resume) as folder:
        summary = RunSummary(folder.summary)
        run_to_the_end(_build_initial_policy(config, folder, summary, progress))
        return place / folder.policy.name


async def _build_initial_policy(
    config: RunConfig, folder: RunFolder, summary: RunSummary, progress: RunProgress
) -> PolicyModel:
    with using_sandbox(build.build_sandbox_settings(config.sandbox)):
        async with run_scope():
            first = InitialPolicyBuilder(
                config=config,
                folder=folder.policy,
                interrupted=folder.warmstart,
                make_env=build.build_env_factory(config),
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
    progress: RunProgress,
    *,
    resume: bool,
    cut_damaged: bool,
) -> TrainingResult:
    summary = RunSummary(folder.summary)
    settings = build.build_sandbox_settings(config.sandbox)
    with using_run_id(new_run_id(config.run.name)), using_sandbox(settings):
        async with run_scope(), AsyncExitStack() as stack:
            writer = stack.enter_context(_open_metrics(config, folder, progress.say))
            policy = await _build_initial_policy(config, folder, summary, progress)
            if (placement := build_device_placement(config)) is not None:
                progress.say(placement.describe())
            engine = build_engine(config, policy)
            # Not where the trainer is made, in a thread: what Ray starts ends with its thread.
            stack.enter_context(build.connect_cluster(config))
            trainer = await finish_in_thread(build.build_trainer, config, policy)
            stack.callback(trainer.close)
            checkpoints = build.build_checkpoints(config, folder.checkpoints, policy)
            remembered = checkpoints.restore(trainer)
            cut_trace(folder.path / TRACE_FILE, remembered.get("trace", {}).get("bytes", 0))
            if resume and trainer.version == 0:
                progress.say(f"{folder.checkpoints} holds no checkpoint: the run starts at step 0")
            record = build.open_run_store(
                config, folder, sampler, resume=resume, cut_damaged=cut_damaged
            )
            at = trainer.version
            writer.truncate_after(at)
            stack.enter_context(_hold_store(record, sampler, summary, remembered, step=at))
            curation = build_curation(
                config,
                sampler,
                lambda: build.build_task_sampler(config, make_env(), list(heldout)),
                version=at,
                saved=remembered.get("curation"),
                stored=checkpoints.read(SUCCESSES),
            )
            async with engine:
                weights = build.build_weight_source(config, trainer)
                await engine.load(weights(), trainer.version)
                make_world = await stack.enter_async_context(
                    build.open_env_workers(config, make_env)
                )
                rollouts = build.build_rollout_runner(config, make_world, engine, policy.chat)
                spans = build.build_span_exporter(config)
                vocabulary = policy.model.config.get_text_config().vocab_size
                drafts = build_drafts(
                    config,
                    rollouts,
                    vocabulary=vocabulary,
                    stored=checkpoints.read(DRAFTS),
                    record=record,
                )
                growing = build.build_growing_caps(config, remembered.get("growth"))
                scheduler = build.build_scheduler(
                    config,
                    rollouts,
                    sampler.take,
                    on_stuck=progress.say,
                    version=trainer.version,
                    record=record,
                    curation=curation,
                    trees=branching.build_branching_topology(
                        config, rollouts, folder=folder.path, vocabulary=vocabulary, record=record
                    ),
                    drafts=drafts,
                    growing=growing,
                    saved=remembered.get("gate"),
                    spans=spans,
                )
                loop = TrainingLoop(
                    schedule=build.build_schedule(config),
                    evaluation=build.build_evaluation(config, heldout),
                    progress=progress,
                    summary=summary,
                    sampler=sampler,
                    rollouts=rollouts,
                    folder=folder.path,
                    scheduler=scheduler,
                    trainer=trainer,
                    weights=weights,
                    checkpoints=checkpoints,
                    record=record,
                    credit=build.build_token_credit_log(config, folder),
                    curation=curation,
                    drafts=drafts,
                    growing=growing,
                    watch=build.build_diagnostics(
                        config,
                        progress.say,
                        memorised=(summary.get("warm start") or {}).get("memorised"),
                    ),
                    spans=spans,
                    used=sampler.mark,
                )
                with spans or nullcontext():
                    if not resume:  # else it was checked when it began, and less is read now
                        check_all_read(config)
                    stack.enter_context(frozen_heap())
                    async with scheduler:
                        return await loop.run(writer)


def _open_metrics(
    config: RunConfig, folder: RunFolder, say: Callable[[str], None]
) -> MetricsWriter:
    """Open the places of the run's numbers, before it computes anything for them."""
    sinks = build.build_metrics_sinks(config, folder.path)
    return MetricsWriter(folder.path, sinks=sinks, say=say)


@contextmanager
def _hold_store(
    record: RunStore | None,
    sampler: TaskSampler,
    summary: RunSummary,
    remembered: Mapping[str, Any],
    *,
    step: int,
) -> Generator[None]:
    """Hold the run's store, and let the tasks go on where the run was.

    The store knows better than the checkpoint of `step`, which `remembered` this.
    """
    mark = remembered.get("tasks", {})
    position = int(mark.get("position", 0))
    with nullcontext() if record is None else record:
        later = record and record.restore(remembered, step=step)
        end = position if later is None else later
        sampler.skip(min(position, end))
        sampler.check(mark)
        sampler.skip(end - sampler.position)
        if record is not None:
            record.before = summary.get("resumed") or {}
            summary.put("resumed", record.summary)
        yield


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """Steps 1 to 9, again and again. `_train` opens and closes its parts."""

    schedule: StepSchedule
    evaluation: HeldOutEvaluation
    progress: RunProgress
    summary: RunSummary
    sampler: TaskSampler
    rollouts: RolloutRunner
    folder: Path
    scheduler: RolloutScheduler
    trainer: "PolicyTrainer"
    weights: Callable[[], Mapping[str, Any]]
    checkpoints: "CheckpointManager"
    record: RunStore | None
    credit: TokenCreditLog | None
    curation: GroupCuration | None
    drafts: DraftingRunner | None
    growing: GrowingCaps | None
    watch: RunDiagnostics | None
    spans: SpanExporter | None
    used: Mapping[str, Any]
    """Mark of the sampler behind the tasks that the completed steps have used."""
    rollout_share: float = 1.0
    """Share of the last step's time that its trajectories took."""
    unwritten: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of the last optimiser step until those of its whole step are written."""

    async def run(self, writer: MetricsWriter) -> TrainingResult:
        """Evaluate, train and evaluate again."""
        if self.credit is not None:
            self.credit.truncate_after(self.trainer.version)
        is_resumed = self.trainer.version > 0
        before = self.summary.get("before") or await self._evaluate_before()
        try:
            with self._training() as phase:
                while self.trainer.version < self.schedule.steps:
                    figures = await self._step(phase)
                    writer.write(self.trainer.version, figures)
                    self.unwritten.clear()
                    if self.spans is not None:
                        self.spans.step(self.trainer.version, figures)
                    await self._check_diagnostics(figures)
                    phase.advance(1, figures)
                    if self.schedule.checkpoints_after(self.trainer.version):
                        await self._save()
        except asyncio.CancelledError:
            if self.unwritten:
                writer.write(self.trainer.version, self.unwritten)
            await self._save()
            raise
        after = await self._evaluate("after")
        if is_resumed:
            self._check_pairs()
        return TrainingResult(
            folder=self.folder,
            steps=self.trainer.version,
            before=before,
            after=after,
            seconds=self.summary.seconds,
        )

    async def _check_diagnostics(self, figures: Mapping[str, float]) -> None:
        try:
            if self.watch is not None:
                self.watch.look(figures)
        except LearnError:
            await self._save()
            raise

    async def _step(self, phase: ProgressPhase) -> dict[str, float]:
        began = time.monotonic()
        before = self.scheduler.work
        async with reporting(lambda: self._show_work(phase, before)):
            batch = await self.scheduler.next_batch()
        collected = time.monotonic()
        trees = batch.trees
        check_failures(
            [leaf.outcome for tree in trees for leaf in tree.leaves],
            max_failed_fraction=self.schedule.max_failed_fraction,
        )
        # A stop may come while it waits, and only what trains may count as used.
        await self.scheduler.sleep_engine()
        curated = self.curation.batch(trees) if self.curation else CuratedBatch(trees=trees)
        self.used = self.sampler.mark
        append_costs(self.folder / TRACE_FILE, trees)
        played = {
            **rollout_figures(trees),
            **likeness_figures(trees),
            **cap_figures(group.order for group in batch.groups),
            **curated.figures,
        }
        figures = await self._learn(batch, curated, played)
        if self.curation is None and self.drafts is None:  # they bring back older tokens
            self.trainer.forget(before=batch.oldest)
        if self.curation is not None:
            self.curation.version = self.trainer.version
        weights = await finish_in_thread(self.weights)
        await self.scheduler.load_weights(weights, self.trainer.version)
        ended = time.monotonic()
        self.rollout_share = (collected - began) / (ended - began)
        figures |= {
            "seconds/rollout": collected - began,
            "seconds/learn": ended - collected,
            "tokens_per_s": figures["tokens/trained"] / (ended - began),
            **self.scheduler.figures(),
            **(self.rollouts.rebuilt.figures() if self.rollouts.rebuilds else {}),
            **(self.drafts.figures() if self.drafts else {}),
            **(self.record.figures() if self.record else {}),
        }
        if self.schedule.evaluates_after(self.trainer.version):
            async with self._serve_evaluation():
                report = await self.evaluation.run(self.rollouts, self.progress)
            save_report(report, self.folder, f"step-{self.trainer.version}")
            figures |= {f"heldout/{name}": value for name, value in report.figures().items()}
        return figures

    def _show_work(self, phase: ProgressPhase, before: RolloutWork) -> None:
        """Report how far the trajectories of a step are, by their tokens."""
        work, batch = self.scheduler.work, self.scheduler.policy
        share = work.count_since(before) / (batch.groups_per_step * batch.group_size)
        figures = {
            "step": float(self.trainer.version + 1),
            "trajectories": float(work.ended - before.ended),
            "tokens": float(max(0, work.tokens - before.tokens)),
        }
        phase.update(min(share, 1.0) * self.rollout_share, figures)

    async def _learn(
        self, batch: RolloutBatch, curated: CuratedBatch, played: Mapping[str, float]
    ) -> dict[str, float]:
        before = self.trainer.version
        self.trainer.keeps_credit = self.credit is not None

        def learn() -> dict[str, float]:
            figures = self.trainer.step(curated.trees, batch.trainable, curated.weights)
            figures |= played
            self.unwritten.update(figures)
            return figures

        try:
            return await finish_in_thread(learn)
        finally:
            if (step := self.trainer.version) > before:
                groups = tuple(group.state.number for group in batch.groups)
                if self.credit is not None:
                    self.credit.write(step, self.trainer.credits, groups=groups)
                if self.growing is not None:
                    orders = (group.order for group in batch.groups)
                    self.growing.on_step(zip(orders, batch.trees, strict=True))
                self.scheduler.events.emit(GroupsTrained(groups=groups, step=step))

    async def _save(self) -> None:
        """Write a checkpoint, while what is under way goes on; what no kept checkpoint needs any
        more goes."""
        samplers: dict[str, Any] = {
            "tasks": self.used,
            "gate": self.scheduler.saved,
            "trace": {"bytes": trace_bytes(self.folder / TRACE_FILE)},
        }
        files = draft_files(self.drafts)
        if self.growing is not None:
            samplers["growth"] = {"growths": self.growing.growths}
        if self.curation is not None:
            samplers["curation"] = self.curation.saved
            files |= curation_files(self.curation)
        if self.record is not None:
            samplers["store"] = self.record.checkpoint(self.trainer.version)
        await finish_in_thread(self.checkpoints.save, self.trainer, samplers=samplers, files=files)
        if self.record is not None:
            self.record.prune(self.checkpoints.oldest())
            self.summary.put("resumed", self.record.summary)

    @asynccontextmanager
    async def _serve_evaluation(self) -> AsyncGenerator[None]:
        async with self.scheduler.paused():
            if self.trainer.ema is None:
                yield
                return
            await self._load_for_evaluation(self.trainer.evaluation_weights)
            try:
                yield
            finally:
                await self._load_for_evaluation(self.weights)

    async def _load_for_evaluation(self, weights: Callable[[], Mapping[str, Any]]) -> None:
        version = self.trainer.version
        state_dict = await finish_in_thread(weights)
        async with BlockDeadline(
            SchedulerDeadlines().load_s, f"loading version {version} for evaluation"
        ):
            await self.scheduler.engine.load(state_dict, version)

    async def _evaluate_before(self) -> dict[str, Any]:
        """Return the evaluation before training, of its report where steps have been trained."""
        if self.trainer.version == 0:
            return await self._evaluate("before")
        if (before := read_summary(self.folder, "before")) is None:
            raise ConfigError(
                f"{self.folder} has lost the evaluation before training (summary.json and "
                f"{FOLDER}/before.json), and its policy has trained {self.trainer.version} steps; "
                "restore one of the files, or start a new run, from the newest checkpoint with "
                "policy.path"
            )
        self.summary.put("before", before)
        return before

    def _check_pairs(self) -> None:
        """Say where before and after are of other tasks or rules, which a resume may change."""
        try:
            compare_reports(read_report(self.folder, "before"), read_report(self.folder, "after"))
        except ConfigError as error:
            self.progress.say(f"before and after are no pair: {error}")

    async def _evaluate(self, when: str) -> dict[str, Any]:
        with self.summary.time_phase(f"evaluate {when}"):
            async with self._serve_evaluation():
                report = await self.evaluation.run(self.rollouts, self.progress, f"evaluate {when}")
        save_report(report, self.folder, when)
        self.summary.put(when, report.summary())
        return report.summary()

    @contextmanager
    def _training(self) -> Generator[ProgressPhase]:
        total, version = self.schedule.steps, self.trainer.version
        with (
            self.summary.time_phase("train"),
            self.progress.phase("train", total=total, done=version) as phase,
        ):
            yield phase
