"""From config sections to the parts of a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    nullcontext,
)
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.authoring.env_contract import read_tasks
from agentrl.chat.renderer import ChatRenderer
from agentrl.config.learning.advantage import MilestonesAdvantage, NudgeAdvantage
from agentrl.config.learning.group_reward import VOTES
from agentrl.config.run import ProbeSection, RunConfig, SandboxSection
from agentrl.config.schema import plain
from agentrl.config.section import mark_read
from agentrl.env import Env, count_milestones, gives_hints, reports_answer, suggests_strategies
from agentrl.errors import ConfigError
from agentrl.evaluation.held_out import HeldOutEvaluation
from agentrl.evaluation.split_guard import SplitOverlap, check_overlap, find_overlap
from agentrl.events.kinds import GroupRequest
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState
from agentrl.metrics.diagnostics import RunDiagnostics
from agentrl.metrics.mlflow_sink import MlflowSink
from agentrl.metrics.spans import SpanExporter
from agentrl.metrics.tensorboard_sink import TensorBoardSink
from agentrl.metrics.trackio_sink import TrackioSink
from agentrl.metrics.wandb_sink import WandbSink
from agentrl.metrics.writer import MetricsSink
from agentrl.policy import PolicyEngine, Sampling
from agentrl.registry import make
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.drafts.runner import DraftingRunner
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.length_growth import GrowingCaps, LengthGrowth
from agentrl.rollout.length_schedule import LengthCaps, LengthSchedule, cap_orders
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.failure_limits import FailureRateLimits
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.topology import IndependentRollouts, StepSchedule
from agentrl.rollout.seed_repeats import SeedRepeats
from agentrl.rollout.task_sampler import TaskSampler, heldout_tasks
from agentrl.run.folder import RunFolder
from agentrl.run.policy_model import trains_in_shards
from agentrl.run.preflight import check_env, check_needs
from agentrl.runtime.seeds import derive
from agentrl.sandbox import Limits, Pressure, SandboxSettings
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.store.token_credit import TokenCreditLog
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.learn.checkpoint import CheckpointManager
    from agentrl.learn.sharded.rank_link import RankLauncher
    from agentrl.learn.trainer import PolicyTrainer
    from agentrl.rollout.branching.branching_topology import BranchingTopology
    from agentrl.run.policy_model import PolicyModel


def build_env_factory(config: RunConfig, *, plays: bool = True) -> Callable[[], Env]:
    """Return the factory of the environment; it has made one already, so a wrong id fails now.

    With `plays`, for more than listing tasks, so does an environment that needs what this machine
    lacks.
    """
    if plays:
        check_env(config)
    factory = partial(make, config.env.id, **config.env.kwargs)
    env = factory()
    if plays:
        check_needs(config, getattr(env, "needs", ()))
    return factory


def open_env_workers(
    config: RunConfig, make_env: Callable[[], Env]
) -> AbstractAsyncContextManager[Callable[[], Env]]:
    """Open a factory that makes environments where the config wants them, until its block ends."""
    if config.cluster.kind == "local":
        return nullcontext(make_env)
    from agentrl.cluster.ray_env_workers import ray_envs

    return ray_envs(config.cluster, make_env)


def connect_cluster(config: RunConfig) -> AbstractContextManager[None]:
    """Be connected to the config's cluster, if it has one, until the block ends."""
    if config.cluster.kind == "local":
        return nullcontext()
    from agentrl.cluster.connection import connect_ray

    return connect_ray(config.cluster)


def build_task_sampler(config: RunConfig, env: Env, heldout: list[Task]) -> TaskSampler:
    """Return the stream of train tasks, guarded against the held-out ones."""
    return TaskSampler(
        env,
        seed=derive(config.run.seed, "tasks"),
        limit=config.env.task_limit,
        heldout=heldout,
        allow_overlap=config.split_guard.allow,
    )


def build_evaluation_tasks(
    config: RunConfig, env: Env, say: Callable[[str], None] | None = None
) -> list[Task]:
    """Return the held-out tasks of every evaluation of the run; `say` hears of it where they are
    fewer than it asks for."""
    count = config.evaluate.tasks
    tasks = heldout_tasks(env, count=count, seed=derive(config.run.seed, "heldout"))
    if say is not None and len(tasks) < count:
        say(
            f"evaluate.tasks is {count}, but {config.env.id} has only {len(tasks)} distinct "
            "held-out tasks: all of them are used"
        )
    return tasks


def find_split_overlap(
    config: RunConfig, env: Env, heldout: Sequence[Task], *, train_tasks: int | None = None
) -> SplitOverlap:
    """Return the overlap of held-out tasks with the first train tasks of the run."""
    section = config.split_guard
    most = [config.env.task_limit, train_tasks or section.train_tasks]
    seed = derive(config.run.seed, "tasks")
    limit = min(count for count in most if count is not None)
    train = list(islice(read_tasks(env, "train", seed=seed), limit))
    return find_overlap(train, heldout, similarity=section.similarity)


def check_splits(config: RunConfig, env: Env, heldout: Sequence[Task]) -> None:
    """Raise `ConfigError` where held-out tasks train, unless the config allows it."""
    section = config.split_guard
    if section.allow:
        return
    # What a run will train on, if that is less: a short run need not wait for the others.
    used = config.run.steps * config.rollout.tasks_per_step
    train_tasks = max(1, min(section.train_tasks, used))
    overlap = find_split_overlap(config, env, heldout, train_tasks=train_tasks)
    check_overlap(overlap, max_near_fraction=section.max_near_fraction)


def check_reports(config: RunConfig, env: Env) -> None:
    """Raise `ConfigError` where a method needs to be told what the environment does not report."""
    _check_answers(config, env)
    _check_hints(config, env)
    advantage = config.learn.advantage
    if isinstance(advantage, NudgeAdvantage) and not suggests_strategies(env):
        raise ConfigError(
            f"learn.advantage.name is {advantage.name}, but {config.env.id} suggests no "
            "strategies; set env.id: agentrl_envs.strategies:NudgedEnv, and name that as `env` in "
            "env.kwargs"
        )
    if isinstance(advantage, MilestonesAdvantage) and not count_milestones(env):
        raise ConfigError(
            f"learn.advantage.name is {advantage.name}, but {config.env.id} reports no milestones "
            "with these env.kwargs; set `milestones: true` there if it has that key (code/Mix-v0), "
            "or let your environment report `milestone/1` and `milestone_turn/1` (docs/methods.md)"
        )


def _check_hints(config: RunConfig, env: Env) -> None:
    hint = config.learn.hint
    if hint is not None and not gives_hints(env):
        raise ConfigError(
            f"learn.hint.name is {hint.name}, which trains after prompts without their hints, but "
            f"{config.env.id} gives none; set env.id: agentrl_envs.strategies:NudgedEnv, and name "
            "that as `env` in env.kwargs (or set gives_hints = True and `unhinted` in the opening "
            "of your environment), or remove the key"
        )


def _check_answers(config: RunConfig, env: Env) -> None:
    votes = config.learn.group_reward
    if isinstance(votes, VOTES) and not reports_answer(env):
        raise ConfigError(
            f"learn.group_reward.name is {votes.name}, which compares final answers, but "
            f"{config.env.id} reports none; give its ToolEnv an `answer` function (or set "
            'reports_answer = True and put info["answer"] in the last step), or remove the key'
        )


def build_diagnostics(
    config: RunConfig, say: Callable[[str], None], *, memorised: str | None = None
) -> RunDiagnostics | None:
    """Return the monitor for signs that the run goes wrong, or None where it is turned off.

    `memorised` is the message about a warm start that learnt by heart.
    """
    section = config.diagnostics
    if section.action == "none":
        return None
    return RunDiagnostics(mark_read(section), say=say, memorised=memorised)


def build_metrics_sinks(config: RunConfig, folder: Path) -> tuple[MetricsSink, ...]:
    """Open the destinations of metrics besides the run's folder."""
    metrics, run_config = config.metrics, plain(config)
    sections = (
        (WandbSink, metrics.wandb),
        (TrackioSink, metrics.trackio),
        (MlflowSink, metrics.mlflow),
    )
    sinks: list[MetricsSink] = [TensorBoardSink(folder)] if metrics.tensorboard else []
    with ExitStack() as opened:
        for open_sink, section in sections:
            if section is not None:
                settings = section.model_dump()
                sink = open_sink(folder, name=config.run.name, config=run_config, **settings)
                opened.callback(sink.close)
                sinks.append(sink)
        opened.pop_all()
    return tuple(sinks)


def build_span_exporter(config: RunConfig) -> SpanExporter | None:
    """Return the spans of the run, or None where none are wanted."""
    return SpanExporter.open(config.run.name) if config.metrics.opentelemetry else None


def build_sandbox_settings(section: SandboxSection) -> SandboxSettings:
    """Return the settings that tools take their sessions from."""
    return SandboxSettings(
        backend=section.backend,
        allow_unisolated=section.allow_unisolated,
        after_timeout=section.after_timeout,
        supervisors=section.supervisors,
        image=section.image,
        packages=section.packages,
        limits=Limits(**section.limits.model_dump()),
        pressure=Pressure(**section.pressure.model_dump()),
    )


def build_episode_limits(config: RunConfig) -> EpisodeLimits:
    """Return the limits that stop a trajectory."""
    rollout = config.rollout
    return EpisodeLimits(
        max_turns=rollout.max_turns,
        max_turn_tokens=config.sampling.max_turn_tokens,
        context_tokens=config.engine.context_tokens,
        reset_s=rollout.reset_s,
        step_s=rollout.step_s,
        turn_s=rollout.turn_s,
        episode_s=rollout.episode_s,
        images=rollout.images,
    )


def build_schedule(config: RunConfig) -> StepSchedule:
    """Return the schedule of training steps."""
    return StepSchedule(
        steps=config.run.steps,
        tasks_per_step=config.rollout.tasks_per_step,
        group_size=config.rollout.group_size,
        max_failed_fraction=config.rollout.max_failed_fraction,
        checkpoint_every=config.run.checkpoint_every,
        evaluate_every=config.evaluate.every,
    )


def build_evaluation(config: RunConfig, tasks: Sequence[Task]) -> HeldOutEvaluation:
    """Return the evaluation of a policy on held-out tasks."""
    section = config.evaluate
    return HeldOutEvaluation(
        tasks=tuple(tasks),
        samples_per_task=section.samples_per_task,
        k=section.k,
        threshold=section.threshold,
        confidence=section.confidence,
        interval=section.interval,
        sampling=Sampling(temperature=section.temperature),
        seed=derive(config.run.seed, "evaluation"),
        about={"env": config.env.id, "kwargs": dict(config.env.kwargs)},
        budgets=mark_read(section.budget),
        until=None if section.until is None else mark_read(section.until),
    )


def build_train_sampling(config: RunConfig) -> Sampling:
    """Return the distribution trajectories are drawn from while training."""
    section = config.sampling
    return Sampling(temperature=section.temperature, top_p=section.top_p, top_k=section.top_k)


def build_rollout_runner(
    config: RunConfig, make_env: Callable[[], Env], engine: PolicyEngine, chat: ChatRenderer
) -> RolloutRunner:
    """Return the runner that turns tasks into trees."""
    return RolloutRunner(
        make_env=make_env,
        engine=engine,
        chat=chat,
        limits=build_episode_limits(config),
        concurrency=config.rollout.concurrency,
        retries=config.rollout.retries,
        fork_s=config.rollout.fork_s,
        stall_s=config.rollout.stall_s,
        entropies=config.curation.steps.name == "high_entropy",
        # In this process nothing holds a world that could be lost without the run.
        rebuilds=0 if config.cluster.kind == "local" else config.rollout.retries,
    )


def build_length_schedule(config: RunConfig) -> LengthSchedule | None:
    """Return the schedule of lengths, or None where every step has the same limits."""
    section = config.rollout.schedule
    if section is None:
        return None
    most = _full_limits(config)
    least = LengthCaps(
        turn_tokens=section.min_turn_tokens or most.turn_tokens,
        turns=section.min_turns or most.turns,
    )
    return LengthSchedule(
        wave=section.wave, period_steps=section.period_steps, least=least, most=most
    )


def build_growing_caps(config: RunConfig, saved: Mapping[str, Any] | None) -> GrowingCaps | None:
    """Return the limits that grow, or None where none does; `saved` is their value of `growths` at
    the checkpoint that the run goes on from."""
    section = config.rollout.growth
    if section is None:
        return None
    most = _full_limits(config)
    least = LengthCaps(
        turn_tokens=section.turn_tokens or most.turn_tokens, turns=section.turns or most.turns
    )
    growth = LengthGrowth(least=least, most=most, factor=section.factor, above=section.above)
    return GrowingCaps(growth=growth, growths=int((saved or {}).get("growths", 0)))


def _full_limits(config: RunConfig) -> LengthCaps:
    return LengthCaps(turn_tokens=config.sampling.max_turn_tokens, turns=config.rollout.max_turns)


def build_scheduler_policy(config: RunConfig) -> SchedulerPolicy:
    """Return the rules for when trajectories run, and when the trainer gets its batch."""
    section = config.rollout
    segment = section.segment
    return SchedulerPolicy(
        mode=section.mode,
        groups_per_step=section.tasks_per_step,
        group_size=section.group_size,
        concurrency=section.concurrency,
        over_provision=section.over_provision,
        max_staleness=section.max_staleness,
        backlog=section.backlog,
        max_start_lag=section.max_start_lag,
        max_age=section.max_age,
        when_old=section.when_old,
        retries=section.retries,
        min_valid=section.min_valid,
        rolling=config.engine.rolling,
        segment=None if segment is None else SegmentBudget(**segment.model_dump()),
    )


def build_failure_limits(config: RunConfig) -> FailureRateLimits:
    """Return the alarms: failures that stop the run."""
    section = config.rollout.alarms
    return FailureRateLimits(
        window=section.window, min_count=section.min_count, thresholds=section.thresholds
    )


def build_seed_repeats(config: RunConfig, record: RunStore | None) -> SeedRepeats:
    """Return the count of each task's groups per step, with those that `record` goes on with."""
    repeats = SeedRepeats()
    if record is not None and record.next_group is not None:
        per_step = config.rollout.tasks_per_step
        oldest = min([record.next_group, *(group.id for group in record.groups)])
        for number, task_id in record.store.tasks_from(oldest // per_step * per_step):
            repeats.find_repeat(number, task_id, step=number // per_step)
    return repeats


def build_scheduler(
    config: RunConfig,
    rollouts: RolloutRunner,
    tasks: Callable[[int], Sequence[Task]],
    *,
    on_stuck: Callable[[str], None],
    version: int,
    record: RunStore | None = None,
    trees: "BranchingTopology | None" = None,
    drafts: DraftingRunner | None = None,
    curation: GroupCuration | None = None,
    growing: GrowingCaps | None = None,
    saved: Mapping[str, Any] | None = None,
    spans: SpanExporter | None = None,
) -> RolloutScheduler:
    """Return the scheduler that makes batches of tasks, for a trainer at `version`.

    It goes on with the groups of `record`, and keeps events there. `trees` makes them branch;
    `drafts` reuse what was played before. With `curation` the tasks are those that it chooses.
    `growing` are limits on length that grow.
    `saved` is the value of `RolloutScheduler.saved` at the checkpoint that the run goes on from.
    """
    per_step = config.rollout.tasks_per_step
    run_seed = config.run.seed
    groups = () if record is None else _restore_groups(record, trees)
    repeats = build_seed_repeats(config, record)
    first_group = version * per_step if curation is None else curation.first_group(version)
    next_group = None if record is None else record.next_group

    def seed(number: int, task: Task, sample: int) -> int:
        # Groups are counted over the whole run, so that a resumed one goes on with its seeds.
        step = number // per_step
        again = repeats.find_repeat(number, task.id, step=step)
        return derive(derive(run_seed, "rollouts", step), task.id, sample, *again)

    source: Callable[[int], Sequence[Task | GroupRequest]] = (
        tasks if curation is None else curation.tasks
    )
    if (lengths := build_length_schedule(config)) is not None:
        source = cap_orders(source, lambda: lengths.find_caps(rollouts.engine.version))
    if growing is not None:
        source = cap_orders(source, lambda: growing.caps)
    events = EventLog() if record is None else record.events
    if spans is not None:
        events.subscribe(spans)
    scheduler = rollouts.scheduler(
        build_scheduler_policy(config),
        source,
        sampling=build_train_sampling(config),
        seed=seed,
        alarms=build_failure_limits(config),
        topology=trees or IndependentRollouts(redundancy=config.rollout.redundancy),
        play=drafts if trees is None else trees.play,
        hooks=None if curation is None else curation.hooks,
        on_stuck=on_stuck,
        version=version,
        events=events,
        first_group=first_group if next_group is None else next_group,
    )
    if saved is not None:
        scheduler.recall(saved)
    if curation is not None:
        curation.flying = scheduler.list_unfinished
        curation.keep(groups)
    if drafts is not None:
        drafts.adopt(groups)
    scheduler.adopt(groups)
    return scheduler


def _restore_groups(record: RunStore, trees: "BranchingTopology | None") -> tuple[GroupState, ...]:
    """Return the groups to go on with; one whose tree cannot be made out begins again."""
    for group in record.groups:
        if not (
            trees.resume_group(group)
            if trees
            else group.status == "complete" or not _has_forks(group)
        ):
            record.begin_again(group)
    return record.groups


def _has_forks(group: GroupState) -> bool:
    return any(rollout.fork is not None for rollout in group.rollouts.values())


def open_run_store(
    config: RunConfig,
    folder: RunFolder,
    sampler: TaskSampler,
    *,
    resume: bool,
    cut_damaged: bool,
) -> RunStore | None:
    """Return the durable record of a run, or None if it keeps none."""
    if config.store is None:
        return None
    return RunStore.open(
        folder.store,
        StoreSettings(**config.store.model_dump()),
        seed=config.run.seed,
        position=lambda: sampler.position,
        resume=resume,
        damaged="cut" if cut_damaged else "refuse",
    )


def build_token_credit_log(config: RunConfig, folder: RunFolder) -> TokenCreditLog | None:
    """Return the log of the token credit of steps, or None where none is kept."""
    if config.store is None or not config.view.record:
        return None
    return TokenCreditLog(folder.path, limit_bytes=config.view.record_bytes)


def build_trainer(config: RunConfig, policy: "PolicyModel") -> "PolicyTrainer":
    """Return the learning half around a policy, which it changes: the engine has copied it before.

    It may start processes; who asked for it closes it.
    """
    if trains_in_shards(config):
        from agentrl.run.build_trainer import build_leading_trainer

        return build_leading_trainer(config, policy, _build_rank_launcher(config))
    from agentrl.learn.trainer import PolicyTrainer

    return PolicyTrainer.from_config(policy.model, config, images=policy.images)


def _build_rank_launcher(config: RunConfig) -> "RankLauncher | None":
    if config.cluster.kind == "local":
        return None
    from agentrl.cluster.trainer.ranks import RayRankLauncher

    return RayRankLauncher(config.cluster)


def build_checkpoints(
    config: RunConfig, folder: Path, policy: "PolicyModel"
) -> "CheckpointManager":
    """Return the checkpoints of a run; each is a model folder with its tokenizer, and its image
    processor if it has one."""
    from agentrl.learn.checkpoint import CheckpointManager

    return CheckpointManager(
        folder=folder,
        keep=config.run.keep_checkpoints,
        tokenizer=policy.tokenizer,
        images=policy.images,
    )


def build_weight_source(
    config: RunConfig, trainer: "PolicyTrainer"
) -> Callable[[], Mapping[str, Any]]:
    """Return a function that gives the trainer's current weights, with a proof where one is needed.

    It is always needed for a server that somebody else started, and for vLLM, which loads the
    weights that it knows by name and passes over the rest.
    """
    section = config.engine.probe
    if section is None and config.engine.kind in ("endpoint", "vllm"):
        section = ProbeSection()
    if section is None:
        return trainer.weights
    from agentrl.learn.weight_check import add_proof

    return partial(add_proof, trainer, section, max_gap=section.max_gap or _choose_max_gap(config))


def _choose_max_gap(config: RunConfig) -> float:
    is_exact = config.policy.dtype == config.learn.precision == "float32"
    return 0.01 if is_exact and config.engine.kind != "endpoint" else 0.5
