"""Evaluation of a policy on tasks it never trained on."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentrl.config.evaluate import BudgetsSection, UntilSection
from agentrl.evaluation.budget import BudgetMeter, MeteredEnv, MeteredSampler, has_bounds
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.scores import Interval, ScoringRules, passes
from agentrl.policy import Sampling
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.rollout.scheduler.topology import RolloutHooks, RolloutKey, check_scored
from agentrl.rollout.scheduler.work import RolloutWork, reporting
from agentrl.rollout.seed_repeats import SeedRepeats
from agentrl.runtime.progress import ProgressPhase, RunProgress
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Leaf, Trajectory, Tree, reward_of

if TYPE_CHECKING:
    from agentrl.evaluation.record import EvaluationRecord
    from agentrl.rollout.runner import RolloutRunner


def is_enough(until: UntilSection, rewards: Sequence[Sequence[float]], rules: ScoringRules) -> bool:
    """Return whether to stop after these tasks, which are the first ones in their order.

    The rule of Chow and Robbins (1965) for intervals of fixed width: whether to stop depends on how
    wide the interval is and not on where it lies, so that looking often costs no coverage in the
    limit of narrow intervals. `min_tasks` keeps it from stopping on the luck of the first few.
    """
    tasks = len(rewards)
    if tasks < until.min_tasks or (tasks - until.min_tasks) % until.every:
        return False
    estimate = passes([task_rewards for task_rewards in rewards if task_rewards], rules)
    return estimate is not None and (estimate.high - estimate.low) / 2 <= until.half_width


@dataclass(slots=True, eq=False)
class OrderedStopTracker:
    """The tasks as they end, looked at in the order they were asked for.

    Short trajectories end first: a look at what has ended would see the quick ones only. So it is
    at the first n tasks once all of them have ended, and what stops the evaluation is a function of
    their rewards alone, however the timing falls.
    """

    until: UntilSection | None
    rules: ScoringRules
    samples: int
    stopped_at: int | None = None
    """Number of tasks that were enough; None before that."""
    _ended: dict[int, int] = field(default_factory=dict[int, int])
    _rewards: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    _first: list[list[float]] = field(default_factory=list[list[float]])

    def record_end(self, task: int, reward: float | None) -> None:
        """Take the end of a trajectory of task number `task`; None for one that broke."""
        if self.until is None:
            return
        self._ended[task] = self._ended.get(task, 0) + 1
        if reward is not None:
            self._rewards.setdefault(task, []).append(reward)
        while self.stopped_at is None and self._ended.get(len(self._first), 0) >= self.samples:
            self._first.append(self._rewards.get(len(self._first), []))
            if is_enough(self.until, self._first, self.rules):
                self.stopped_at = len(self._first)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEvaluation:
    """The same tasks, samples and seeds every time, so that two evaluations are paired."""

    tasks: tuple[Task, ...]
    samples_per_task: int
    k: tuple[int, ...]
    threshold: float
    confidence: float
    interval: Interval = "wilson"
    sampling: Sampling
    seed: int
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Conditions of the evaluation, such as the environment, for the report."""
    budgets: BudgetsSection = field(default_factory=BudgetsSection)
    until: UntilSection | None = None

    async def run(
        self,
        rollouts: "RolloutRunner",
        progress: RunProgress,
        phase: str = "evaluate",
        record: "EvaluationRecord | None" = None,
    ) -> EvaluationReport:
        """Play every task that `record` has not kept yet; failures are reported apart, no zeros."""
        total = len(self.tasks) * self.samples_per_task
        with progress.phase(phase, total=total) as bar:
            # Entropies are for choosing what trains, and cost a pass over the vocabulary per token.
            play = _Play(self, replace(rollouts, entropies=False), bar, record)
            trees = await play.collect()
        counted = play.select_counted(trees)
        check_scored([leaf.outcome for tree in counted for leaf in tree.leaves])
        report = self.report([one for tree in counted for one in tree.trajectories()], k=self.k)
        return replace(
            report,
            spent=asdict(play.meter.spent) if play.meters else None,
            stopped=play.describe_stop(len(counted), beyond=len(trees) - len(counted)),
        )

    def report(
        self,
        trajectories: Sequence[Trajectory],
        *,
        k: Sequence[int],
        about: Mapping[str, Any] | None = None,
    ) -> EvaluationReport:
        """Return the report of trajectories of this evaluation; `about` is added to its own."""
        settings = {"seed": self.seed, "temperature": self.sampling.temperature}
        return EvaluationReport.of(
            trajectories,
            k=k,
            threshold=self.threshold,
            confidence=self.confidence,
            interval=self.interval,
            about={**self.about, **settings, **(about or {})},
        )


class _Play:
    """One evaluation while it is played."""

    def __init__(
        self,
        evaluation: HeldOutEvaluation,
        rollouts: "RolloutRunner",
        bar: ProgressPhase,
        record: "EvaluationRecord | None",
    ) -> None:
        self.evaluation = evaluation
        self.rollouts = rollouts
        budgets = evaluation.budgets
        self.meter = BudgetMeter(budgets)
        self.meters = has_bounds(budgets.each) or has_bounds(budgets.total)
        self._bar = bar
        self._record = record
        rules = ScoringRules(
            k=(1,),
            threshold=evaluation.threshold,
            confidence=evaluation.confidence,
            interval=evaluation.interval,
        )
        self._first = OrderedStopTracker(evaluation.until, rules, evaluation.samples_per_task)
        self._places = {task.fingerprint: at for at, task in enumerate(evaluation.tasks)}
        self._kept = {} if record is None else record.kept
        self._left = deque(t for t in evaluation.tasks if t.fingerprint not in self._kept)
        self._repeats = SeedRepeats()
        self._adopting = False
        self._sum, self._count = 0.0, 0
        self._turns = self._tokens = self._ended = 0
        self._begun = 0.0
        self._total = len(evaluation.tasks) * evaluation.samples_per_task

    async def collect(self) -> list[Tree]:
        """Return one tree per task that was played, in the order of the tasks."""
        async with self._scheduler() as scheduler:
            self._adopting = True
            scheduler.adopt([self._kept[name] for name in self._places if name in self._kept])
            self._adopting = False
            async with reporting(lambda: self._show_work(scheduler.work)):
                trees = (await scheduler.next_batch()).trees
            self._show_work(scheduler.work)
        return sorted(trees, key=lambda tree: self._places[tree.task.fingerprint])

    def select_counted(self, trees: Sequence[Tree]) -> Sequence[Tree]:
        """Return the trees that the report is of: with an early stop those it was decided on."""
        enough = self._first.stopped_at
        if enough is None:
            return trees
        return [tree for tree in trees if self._places[tree.task.fingerprint] < enough]

    def describe_stop(self, tasks: int, *, beyond: int) -> dict[str, Any] | None:
        """Return the reason for a stop before the last task; None where there was none."""
        of = len(self.evaluation.tasks)
        if (until := self.evaluation.until) is not None and self._first.stopped_at is not None:
            return {"by": "half_width", "at": until.half_width, "tasks": tasks, "of": of} | (
                {"played_beyond": beyond} if beyond else {}
            )
        if tasks == of or (what := self.meter.exhausted) is None:
            return None
        at = getattr(self.evaluation.budgets.total, what)
        return {"by": f"budget.{what}", "at": at, "tasks": tasks, "of": of}

    def _scheduler(self) -> RolloutScheduler:
        evaluation, rollouts = self.evaluation, self.rollouts
        version = rollouts.engine.version
        return rollouts.scheduler(
            # `async` opens a group when there is a place for it, so that one can stop opening them.
            SchedulerPolicy(
                mode="async",
                groups_per_step=len(evaluation.tasks),
                group_size=evaluation.samples_per_task,
                concurrency=rollouts.concurrency,
                retries=rollouts.retries,
                max_staleness=0,
            ),
            self._take,
            sampling=evaluation.sampling,
            seed=self._seed,
            play=self._play_metered if self.meters else None,
            hooks=RolloutHooks(on_turn=self._count_turn, on_finished=self._count_end),
            version=version,
            events=self._record.run.events if self._record else None,
            first_group=(self._record.run.next_group or 0) if self._record else 0,
        )

    def _take(self, count: int) -> list[Task]:
        if self._first.stopped_at is not None or self.meter.exhausted is not None:
            return []
        return [self._left.popleft() for _ in range(min(count, len(self._left)))]

    def _seed(self, number: int, task: Task, sample: int) -> int:
        again = self._repeats.find_repeat(number, task.id)
        return derive(self.evaluation.seed, task.id, sample, *again)

    def _count_turn(self, attempt: RolloutKey, tree: Tree) -> None:
        # Tasks of many turns end late: turns are what shows that a slow policy plays at all.
        self._turns += 1
        self._bar.update(self._begun, self._figures())

    def _show_work(self, work: RolloutWork) -> None:
        """Report how far the trajectories are that go on, by their tokens."""
        self._begun = work.count_since(RolloutWork()) - work.ended
        self._tokens = work.tokens
        self._bar.update(self._begun, self._figures())

    def _figures(self) -> dict[str, float]:
        figures = {"turns": float(self._turns)}
        figures |= {"tokens": float(self._tokens)} if self._tokens else {}
        return figures | ({"reward": self._sum / self._count} if self._count else {})

    def _count_end(self, attempt: RolloutKey, tree: Tree, leaf: Leaf) -> None:
        if self._adopting and self.meters:
            self.meter.keep(tree, leaf)
        reward = reward_of(leaf.outcome)
        if reward is not None:
            self._turns += 1  # its last, after which nobody asks again
            self._sum, self._count = self._sum + reward, self._count + 1
        self._first.record_end(self._places[tree.task.fingerprint], reward)
        self._ended += 1
        self._begun = max(self._begun - 1, 0.0)
        self._bar.advance(1, self._figures())

    async def _play_metered(self, slot: RolloutSlot) -> Leaf:
        world = await self.rollouts.restore_env(slot)
        stand = slot.stand
        calls = stand.tool_calls if stand else 0
        meter = self.meter.begin(slot.tree, stand.node if stand else None, tool_calls=calls)
        slot.sampler = MeteredSampler(slot.sampler or slot.scheduler.engine, meter)
        episode = self.rollouts.episode(slot, self.evaluation.sampling, world=world)
        episode.env = MeteredEnv(episode.env, meter)
        return await episode.run()
