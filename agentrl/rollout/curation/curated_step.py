"""One step of curation at the edge: hands out what to roll out, takes trees, gives back a batch."""

from collections.abc import Collection as Names
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from agentrl.rollout.curation.collection import (
    JudgedGroup,
    StepCollection,
    check_enough,
    ended,
    is_done,
    missing_groups,
    started,
)
from agentrl.rollout.curation.curator import (
    CuratedTaskSource,
    CurationState,
    after_step,
    first_state,
    record_of,
    usable_carried,
)
from agentrl.rollout.curation.dapo import Verdict, verdict
from agentrl.rollout.curation.metrics import StepAccount, figures
from agentrl.rollout.curation.outcomes import GroupOutcome, group_result
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.steps import turn_weights
from agentrl.rollout.curation.success_pool import SuccessLoan, with_loan
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.store.trajectory_copy import TrajectoryCopy, branch_of, with_branch, with_members
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CurationRequest:
    """Trajectories to make: samples `first_sample` to `first_sample + trajectories - 1`."""

    ordinal: int
    """Index of the group within the step."""
    task: Task
    trajectories: int
    max_turns: int
    first_sample: int = 0
    tree: Tree | None = None
    """Tree of a first phase; the second one adds to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CuratedBatch:
    """Batch of a step: trees, loss weights and loans."""

    trees: tuple[Tree, ...]
    """In the order their groups were drawn, whatever order they ended in."""
    weights: tuple[Mapping[int, Mapping[int, float]], ...] | None = None
    """Per tree, by sample and turn, what multiplies the loss of its tokens; None is 1 for all."""
    loans: tuple[SuccessLoan, ...] = ()
    """Trajectories of the batch that an earlier step made."""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


class TaskCurator:
    """Curates one step after the other. Its whole state is `state` and what `stored` names."""

    def __init__(
        self,
        rules: CurationRules,
        stream: TaskSampler,
        *,
        seed: int,
        group_size: int,
        max_turns: int,
        state: CurationState | None = None,
        branches: Mapping[str, TrajectoryCopy] | None = None,
        carried: Mapping[str, Tree] | None = None,
    ) -> None:
        """Begin, or go on from a saved `state`.

        `branches` and `carried` are what `stored` held then, by name; what is missing of them is
        not lent and not carried, and the run is no longer exactly the one that was saved.
        """
        self.rules = rules
        self.seed = seed
        self.group_size = group_size
        self.max_turns = max_turns
        self.source = CuratedTaskSource(rules, stream, seed=seed)
        self.branches = dict(branches or {})
        self.carried = dict(carried or {})
        self.state = first_state(rules) if state is None else self._lendable(state)
        if state is not None:
            self.source.restore(state)

    @property
    def stored(self) -> tuple[Mapping[str, TrajectoryCopy], Mapping[str, Tree]]:
        """Return the trajectories that may be lent and the groups that wait, by name."""
        return self.branches, self.carried

    def loan(self, group: GroupOutcome, *, version: int) -> SuccessLoan | None:
        """Return the stored success lent to a group without one; None where there is none."""
        pool, above = self.rules.pool, self.rules.success_above
        if pool is None:
            return None
        loan = pool.lend(self.state.pool, group, version=version, success_above=above)
        return loan if loan and loan.ref in self.branches else None

    def trains(self, group: GroupOutcome) -> frozenset[int]:
        """Return the samples of a group, as a loan leaves it, that train."""
        rule, above = self.rules.members, self.rules.success_above
        if rule is None:
            return frozenset(result.sample for result in group.valid)
        return rule.chosen(group, seed=self.seed, success_above=above)

    def judged(
        self, group: GroupOutcome, loan: SuccessLoan | None
    ) -> tuple[Verdict, frozenset[int]]:
        """Return whether a group trains, and which of its samples would."""
        lent = with_loan(group, loan) if loan else group
        members = self.trains(lent)
        cut = replace(
            lent, results=tuple(r for r in lent.results if r.reward is None or r.sample in members)
        )
        rule = self.rules.filter
        return verdict(cut, rule) if rule else "kept", members

    def _lendable(self, state: CurationState) -> CurationState:
        """Return a saved state without the successes nobody holds, which could never be lent."""
        return replace(state, pool=state.pool.holding(self.branches.keys()))

    def remember(self, group: GroupOutcome, tree: Tree, leaves: Iterable[Leaf]) -> None:
        """Store a group's trajectories by name, until `keep_stored` knows which to keep."""
        if self.rules.pool is not None:
            for leaf in leaves:
                self.branches[f"{group.key}/{leaf.sample}"] = branch_of(tree, leaf)

    def keep_stored(self, trees: Mapping[str, Tree]) -> None:
        """Store the groups of `trees` that wait, and forget what the state no longer names."""
        self.branches = _only(self.branches, self.state.pool.refs)
        waiting = {group.key for group in self.state.carried}
        self.carried = _only({**self.carried, **trees}, waiting)

    def step(self, wanted: int, *, version: int, busy: Names[str] = ()) -> "CuratedStep":
        """Begin a step of `wanted` groups at a trainer version; `busy` tasks are not drawn."""
        return CuratedStep(curator=self, wanted=wanted, version=version, busy=frozenset(busy))


@dataclass(slots=True, kw_only=True)
class CuratedStep:
    """One step: `asks` until it gives nothing, `ended` for each tree, `finish` once.

    Groups may be asked for and end in any order and number. Only `finish` changes the curator, so
    a step that is given up leaves no trace but the stream's position.
    """

    curator: TaskCurator
    wanted: int
    version: int
    busy: frozenset[str]

    _state: StepCollection = field(init=False)
    _tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    _trees: dict[str, Tree] = field(default_factory=dict[str, Tree])
    _loans: dict[str, SuccessLoan] = field(default_factory=dict[str, SuccessLoan])
    _grown: set[int] = field(default_factory=set[int])
    _second: list[CurationRequest] = field(default_factory=list[CurationRequest])
    _abandoned: dict[int, GroupOutcome] = field(default_factory=dict[int, GroupOutcome])

    def __post_init__(self) -> None:
        curator = self.curator
        usable = usable_carried(curator.rules, curator.state, self.version)
        here = tuple(group for group in usable if group.key in curator.carried)
        self._state = StepCollection(step=curator.state.steps, wanted=self.wanted, carried=here)
        self._trees.update({group.key: curator.carried[group.key] for group in here})

    @property
    def done(self) -> bool:
        """Return whether nothing more can join the batch; what still runs may be stopped."""
        return is_done(self._state, self.curator.rules.filter)

    def asks(self) -> list[CurationRequest]:
        """Return the groups to start now: second phases first, then new groups."""
        asks, self._second = self._second, []
        return asks + self._new_groups()

    def ended(self, ask: CurationRequest, tree: Tree) -> Verdict | None:
        """Take the tree of an ask in which every trajectory has ended, failures among them.

        Returns None when the group goes on with a second phase.
        """
        group = self._result(ask, tree)
        more = 0
        if ask.ordinal not in self._grown:
            more = self.curator.rules.allocation.more(group, base=self.curator.group_size)
        if more > 0:
            self._grown.add(ask.ordinal)
            self._second.append(
                replace(ask, first_sample=group.asked, trajectories=more, tree=tree)
            )
            return None
        return self._judge(group, tree)

    def abandoned(self, ask: CurationRequest, tree: Tree) -> None:
        """Report what a group that was stopped on the way had so far, for the figures only."""
        self._abandoned[ask.ordinal] = self._result(ask, tree)

    def finish(self) -> CuratedBatch:
        """Return the batch and learn from the step, which is `done`.

        Raises `NothingToLearn` as the filter says.
        """
        curator, state = self.curator, self._state
        if not self.done:
            raise ValueError(
                f"step {state.step} is not done: groups {list(state.running)} are running; report "
                "each with ended, or wait until done says that they are not needed"
            )
        check_enough(state, curator.rules.filter)
        batch = sorted(state.batch, key=lambda group: (group.step, group.ordinal))
        trees = tuple(self._trees[group.key] for group in batch)
        loans = tuple(self._loans[group.key] for group in batch if group.key in self._loans)
        before = curator.state
        curator.state = after_step(
            curator.rules,
            before,
            state,
            self._loans.values(),
            drawn=[task.id for task in self._tasks.values()],
            version=self.version,
            position=curator.source.position,
            tasks=curator.source.tasks,
        )
        curator.keep_stored(self._trees)
        account = StepAccount(
            collection=state,
            loans=loans,
            abandoned=tuple(self._abandoned.values()),
            carried_before=before.carried,
            carried_after=curator.state.carried,
            base=curator.group_size,
            trains=curator.trains,
        )
        rule = curator.rules.steps
        return CuratedBatch(
            trees=trees,
            weights=tuple(turn_weights(tree, rule) for tree in trees) if rule else None,
            loans=loans,
            figures=figures(account),
        )

    def _new_groups(self) -> list[CurationRequest]:
        rules, state = self.curator.rules, self._state
        count = missing_groups(state, rules.filter)
        if not count:
            return []
        tasks = self.curator.source.take(
            self.curator.state, count, round_number=state.rounds, taken=self._taken()
        )
        self._state = started(state, asked=count, got=len(tasks))
        return [self._first(state.started + i, task) for i, task in enumerate(tasks)]

    def _taken(self) -> frozenset[str]:
        here = {task.id for task in self._tasks.values()}
        return frozenset(here | self.busy | {group.task_id for group in self._state.carried})

    def _first(self, ordinal: int, task: Task) -> CurationRequest:
        curator = self.curator
        self._tasks[ordinal] = task
        allotment = curator.rules.allocation.first(
            record_of(curator.state, task.id), base=curator.group_size, max_turns=curator.max_turns
        )
        return CurationRequest(
            ordinal=ordinal,
            task=task,
            trajectories=allotment.trajectories,
            max_turns=allotment.max_turns,
        )

    def _result(self, ask: CurationRequest, tree: Tree) -> GroupOutcome:
        total = ask.first_sample + ask.trajectories
        return group_result(tree, step=self._state.step, ordinal=ask.ordinal, asked=total)

    def _judge(self, group: GroupOutcome, tree: Tree) -> Verdict:
        loan = self.curator.loan(group, version=self.version)
        group_verdict, members = self.curator.judged(group, loan)
        self._state = ended(self._state, JudgedGroup(group=group, verdict=group_verdict))
        self.curator.remember(group, tree, tree.leaves)
        trained = tree
        if loan and group_verdict == "kept":
            self._loans[group.key] = loan
            branch = self.curator.branches[loan.ref]
            trained = with_branch(tree, branch, sample=loan.result.sample, age=loan.age)
        self._trees[group.key] = with_members(trained, members)
        return group_verdict


def _only(held: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    name_set = {*names}
    return {name: value for name, value in held.items() if name in name_set}
