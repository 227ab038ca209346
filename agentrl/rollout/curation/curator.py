"""The state of curation across steps, and the source of its tasks."""

from collections.abc import Collection as Names
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from agentrl.errors import ConfigError
from agentrl.rollout.curation.cdas import CdasState
from agentrl.rollout.curation.dapo import Verdict
from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.record import UNSEEN, TaskStatistics, observe
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import UniformSamplerState, overdue
from agentrl.rollout.curation.success_pool import PoolState, SuccessLoan
from agentrl.rollout.curation.vade import VadeState
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.runtime.seeds import derive
from agentrl.task import Task

CATALOGUE = 100_000
"""Tasks read before a stream counts as endless."""

DROPPED: tuple[Verdict, ...] = ("all_right", "all_wrong", "even", "too_easy", "too_few")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """A finished group and what became of it."""

    group: GroupOutcome
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollection:
    """Groups that ended in a step. Values that JSON can hold."""

    step: int
    judged: tuple[JudgedGroup, ...] = ()
    rounds: int = 0

    @property
    def kept(self) -> tuple[GroupOutcome, ...]:
        """Groups that may train, in the order they ended."""
        return tuple(j.group for j in self.judged if j.verdict == "kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationState:
    """Everything that the next step depends on. JSON through `saved.encode` and `saved.decode`."""

    steps: int = 0
    position: int = 0
    """Position in the stream, where tasks come from it."""
    groups: int = 0
    """Begun behind a scheduler so far; their seeds follow from it."""
    sampler: UniformSamplerState | CdasState | VadeState | None = None
    records: Mapping[str, TaskStatistics] = field(default_factory=dict[str, TaskStatistics])
    drawn: Mapping[str, int] = field(default_factory=dict[str, int])
    """The step each task was last drawn in, where a sampler chooses."""
    pool: PoolState = field(default_factory=PoolState)


def build_first_state(rules: CurationRules) -> CurationState:
    """Return the state before the first step."""
    return CurationState(sampler=rules.sampler.start() if rules.sampler else None)


def update_state(
    rules: CurationRules,
    state: CurationState,
    collection: StepCollection,
    loans: Iterable[SuccessLoan],
    *,
    drawn: Names[str],
    version: int,
    position: int,
    tasks: int,
) -> CurationState:
    """Return the state after a step at trainer version `version`.

    Every group that ended counts, dropped or not, as it was sampled: without loans. `drawn` are the
    tasks that were drawn, `position` where the stream is, `tasks` how many there are.
    """
    groups = [judged.group for judged in collection.judged]
    batch = {group.key for group in collection.kept}
    lent = {loan.group: loan for loan in loans}
    sampler = state.sampler
    if rules.sampler is not None:
        sampler = rules.sampler.observe(sampler, groups, tasks=tasks)
    records, pool = state.records, state.pool
    if window := rules.allocation.window:
        records = observe(records, groups, window=window, success_above=rules.success_above)
    if rules.pool is not None:
        used = [loan for key, loan in lent.items() if key in batch]
        pool = rules.pool.observe(
            pool, groups, used, version=version, success_above=rules.success_above
        )
    return replace(
        state,
        steps=state.steps + 1,
        position=position,
        sampler=sampler,
        records=records,
        drawn={**state.drawn, **dict.fromkeys(drawn, state.steps)} if rules.sampler else {},
        pool=pool,
    )


def find_record(state: CurationState, task_id: str) -> TaskStatistics:
    """Return the record of a task; `UNSEEN` without one."""
    return state.records.get(task_id, UNSEEN)


class CuratedTaskSource:
    """Tasks for the rounds of a step: from the stream, or chosen by a sampler among all there are.

    Raises `ConfigError` when a sampler meets an endless stream or a state of other tasks.
    """

    def __init__(self, rules: CurationRules, stream: TaskSampler, *, seed: int) -> None:
        self._rules = rules
        self._stream = stream
        self._seed = seed
        self._tasks: dict[str, Task] = {}
        if rules.sampler is not None:
            for task in islice(stream.stream(), CATALOGUE + 1):
                self._tasks.setdefault(task.id, task)
            self._check_catalogue()

    @property
    def tasks(self) -> int:
        """Number of tasks a sampler chooses from; 0 for the stream."""
        return len(self._tasks)

    @property
    def position(self) -> int:
        """Number of tasks the stream has handed out."""
        return self._stream.position if self._rules.sampler is None else 0

    def restore(self, state: CurationState) -> None:
        """Go on from a saved state; called once, before the first `take`.

        A stream that is already where it was then, or further, stays there.
        """
        if self._rules.sampler is None:
            self._stream.skip(max(0, state.position - self._stream.position))
        elif ids := sorted(state.drawn.keys() - self._tasks.keys()):
            raise ConfigError(
                f"the saved run has drawn task {ids[0]!r}, but {len(ids)} of its tasks are no "
                "longer in the environment; resume with the original env.id, env.kwargs and "
                "env.task_limit"
            )

    def take(
        self, state: CurationState, count: int, *, round_number: int, taken: Names[str]
    ) -> list[Task]:
        """Return tasks for one round; a sampler leaves out those `taken`, and may run out."""
        sampler = self._rules.sampler
        if sampler is None:
            return self._stream.take(count)
        free = [task for task in self._tasks if task not in taken]
        first: tuple[str, ...] = ()
        if every := self._rules.revisit_every:
            first = overdue(free, state.drawn, step=state.steps, every=every, count=count)
        rest = [task for task in free if task not in first]
        seed = derive(self._seed, "curation", state.steps, round_number)
        picks = sampler.select(state.sampler, rest, count - len(first), seed=seed)
        return [self._tasks[task] for task in (*first, *picks)]

    def _check_catalogue(self) -> None:
        if not self._tasks:
            raise ConfigError(
                "the environment yields no train task; check env.kwargs, and that its tasks() "
                'yields some for the split "train"'
            )
        if len(self._tasks) > CATALOGUE:
            raise ConfigError(
                "curation.sampler.name needs a known set of tasks, but the environment has more "
                f"than {CATALOGUE}; set env.task_limit, or curation.sampler.name: stream"
            )
