"""Stored trajectories under today's checker: what scores the same, what changed, what cannot tell.

For an evaluation that was kept (`agentrl eval --out`), and for the training groups of a run. The
policy is not run: what it did is on the disk.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.env import rescored_by
from agentrl.errors import ConfigError
from agentrl.evaluation.bounded_gather import gather_bounded
from agentrl.evaluation.compare import PolicyComparison, compare
from agentrl.evaluation.rescore import SCORED, RecordedTrajectory, RescoreResult, TrajectoryRescorer
from agentrl.evaluation.sample import EvaluationSample
from agentrl.evaluation.scores import ScoringRules
from agentrl.events.state import GroupState, RolloutState
from agentrl.run import build
from agentrl.run.evaluation_folder import CONFIG, POLICY, STORE
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import run_to_the_end
from agentrl.sandbox import using_sandbox
from agentrl.store.errors import StoreError
from agentrl.store.reader import StoreReader
from agentrl.task import Task
from agentrl.trajectory import outcome_name

How = Literal["auto", "record", "replay"]
"""Method for scoring trajectories again; `auto` is as the environment declares."""
TasksOf = Literal["record", "today"]
"""Source of answers and checker data: the recorded task, or today's of the same id and prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverifyReport:
    """Everything that was scored again."""

    about: Mapping[str, Any]
    rules: ScoringRules
    found: tuple[RescoreResult, ...]
    pruned: int
    other_tasks: int
    """Trajectories whose task is not among today's; they were scored by the recorded one."""

    @property
    def verdicts(self) -> dict[str, int]:
        """Number of trajectories per verdict."""
        return dict(sorted(Counter(one.verdict for one in self.found).items()))

    @property
    def changed(self) -> tuple[RescoreResult, ...]:
        """Trajectories that score or end otherwise today."""
        return tuple(one for one in self.found if one.verdict == "changed")

    @property
    def unknown(self) -> tuple[RescoreResult, ...]:
        """Trajectories that had a score and have none today."""
        verdicts = (*SCORED, "broke_then")
        return tuple(one for one in self.found if one.verdict not in verdicts)

    def comparison(self) -> PolicyComparison | None:
        """Return today's scores (B) against the recorded ones (A); None without a pair."""
        samples = [*_pair_samples(self.found)]
        if not any(now.reward is not None for _, now in samples):
            return None
        return compare([then for then, _ in samples], [now for _, now in samples], rules=self.rules)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON: a report that `agentrl compare` takes, and more."""
        comparison = self.comparison()
        samples = [*_pair_samples(self.found)]
        return {
            "about": dict(self.about),
            "threshold": self.rules.threshold,
            "confidence": self.rules.confidence,
            "verdicts": self.verdicts,
            "pruned": self.pruned,
            "other_tasks": self.other_tasks,
            "comparison": None if comparison is None else comparison.to_json(),
            "samples": [
                asdict(now)
                | {"verdict": one.verdict, "before": one.before, "why": one.why}
                | {"components": one.components}
                for one, (_, now) in zip(self.found, samples, strict=True)
            ],
        }


def reverify(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    how: How = "auto",
    tasks: TasksOf = "record",
    limit: int | None = None,
    progress: RunProgress,
) -> ReverifyReport:
    """Score what is stored in `folder` again, the newest `limit` groups of it.

    Raises `ConfigError` where no trajectory is stored, where the environment says that its
    trajectories cannot be scored again, and for today's tasks of training groups.
    """
    config = _load_config(folder, overrides)
    if tasks == "today" and not (folder / POLICY).exists():
        raise ConfigError(
            f"{folder} is a run, whose current train tasks cannot be looked up by id; omit --tasks "
            "today, or name a folder of agentrl eval --out"
        )
    try:
        with StoreReader(folder / STORE) as store:
            facts = store.facts()[-limit if limit else 0 :]
            pruned = sum(one.is_pruned for one in facts)
            groups = (store.group(one.id) for one in facts if not one.is_pruned)
            return run_to_the_end(
                _reverify(folder, config, groups, how, tasks, pruned=pruned, progress=progress)
            )
    except StoreError as error:
        raise ConfigError(f"{folder} has no trajectories to re-score: {error}") from error


async def _reverify(
    folder: Path,
    config: RunConfig,
    groups: Iterator[GroupState],
    how: How,
    tasks: TasksOf,
    *,
    pruned: int,
    progress: RunProgress,
) -> ReverifyReport:
    make_env = build.build_env_factory(config, plays=False)
    env = make_env()
    by = rescored_by(env)
    if by == "never" and how == "auto":
        raise ConfigError(
            f"{config.env.id} declares that its trajectories cannot be re-scored (rescore_by is "
            "'never'), because replaying actions does not reproduce them. Evaluate the policy "
            "again, or force a replay with --how replay"
        )
    rescorer = TrajectoryRescorer(
        make_env=make_env,
        limits=build.build_episode_limits(config),
        retries=config.rollout.retries,
        by=None if how == "auto" else how,
    )
    recordings = [one for group in groups for one in recordings_of(group)]
    today = _index_by_id(build.build_evaluation_tasks(config, env)) if tasks == "today" else None
    with using_sandbox(build.build_sandbox_settings(config.sandbox)):
        async with run_scope():
            results = await rescore_all(
                rescorer, recordings, today, concurrency=config.rollout.concurrency,
                progress=progress,
            )  # fmt: skip
    section = config.evaluate
    rules = ScoringRules(
        k=(1,),
        threshold=section.threshold,
        confidence=section.confidence,
        interval=section.interval,
    )
    return ReverifyReport(
        about=_read_conditions(folder, config),
        rules=rules,
        found=tuple(results),
        pruned=pruned,
        other_tasks=sum(_find_todays(one.task, today) is None for one in recordings)
        if today
        else 0,
    )


async def rescore_all(
    rescorer: TrajectoryRescorer,
    recordings: Sequence[RecordedTrajectory],
    today: Mapping[str, Task] | None,
    *,
    concurrency: int,
    progress: RunProgress,
) -> list[RescoreResult]:
    """Score recordings again, at most `concurrency` at a time; in their order."""
    changed = 0

    async def one(recording: RecordedTrajectory) -> RescoreResult:
        nonlocal changed
        task = None if today is None else _find_todays(recording.task, today)
        result = await rescorer.rescore(recording, task=task)
        changed += result.verdict == "changed"
        bar.advance(1, {"changed": changed})
        return result

    with progress.phase("reverify", total=len(recordings)) as bar:
        return await gather_bounded(one, recordings, limit=concurrency)


def recordings_of(group: GroupState) -> list[RecordedTrajectory]:
    """Return the recordings of a group that have ended: the latest try at each sample."""
    latest = {one.sample: one for one in group.rollouts.values() if one.status == "ended"}
    return [_build_recording(group, latest[sample]) for sample in sorted(latest)]


def _build_recording(group: GroupState, one: RolloutState) -> RecordedTrajectory:
    assert one.leaf is not None
    history = one.history(group.task)
    return RecordedTrajectory(
        task=group.task,
        sample=one.sample,
        world_sample=one.sample if history is None else history.sample,
        seed=one.started.seed if history is None else history.seed,
        exchanges=one.exchanges,
        leaf=one.leaf,
    )


def _pair_samples(
    found: Iterable[RescoreResult],
) -> Iterator[tuple[EvaluationSample, EvaluationSample]]:
    """Yield each trajectory as it was scored and as it is; a run plays a task more than once."""
    played: defaultdict[str, int] = defaultdict(int)
    for one in found:
        task, was = one.recording.task, one.recording.leaf.outcome
        number = played[task.fingerprint]
        played[task.fingerprint] += 1
        names = (
            outcome_name(was),
            one.verdict if one.outcome is None else outcome_name(one.outcome),
        )
        then, now = (
            EvaluationSample(
                task=task.id,
                fingerprint=task.fingerprint,
                sample=number,
                outcome=name,
                reward=reward,
            )
            for name, reward in zip(names, (one.before, one.after), strict=True)
        )
        yield then, now


def _index_by_id(tasks: Iterable[Task]) -> dict[str, Task]:
    return {task.id: task for task in tasks}


def _find_todays(task: Task, today: Mapping[str, Task]) -> Task | None:
    candidate = today.get(task.id)
    return candidate if candidate is not None and candidate.messages == task.messages else None


def _load_config(folder: Path, overrides: Sequence[str]) -> RunConfig:
    if not (folder / STORE).is_dir():
        raise ConfigError(
            f"{folder} holds no stored trajectories: name a folder of agentrl eval --out, or a run "
            "with a store (store.keep)"
        )
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{folder} holds trajectories but no config.yaml, which names their environment; "
            "restore it from a copy"
        )
    return load_config(folder / CONFIG, overrides)


def _read_conditions(folder: Path, config: RunConfig) -> dict[str, Any]:
    try:
        return json.loads((folder / "report.json").read_text(encoding="utf-8"))["about"]
    except (OSError, ValueError, KeyError):
        return {"env": config.env.id, "kwargs": dict(config.env.kwargs), "stored": str(folder)}
