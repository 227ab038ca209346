"""Curation of the groups of a scheduler, which opens them and replaces dropped ones.

Groups may begin in one step and end in another, so each counts in the step in which it ends; one
that is begun again for its age counts again when it ends again. The scheduler decides how many
groups to open; the allocation says how large each is, and may let it grow where it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.events.kinds import GroupRequest
from agentrl.events.state import GroupState
from agentrl.rollout.curation.curator import (
    CurationState,
    JudgedGroup,
    StepCollection,
    find_record,
    update_state,
)
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn
from agentrl.rollout.curation.metrics import StepAccount, figures
from agentrl.rollout.curation.outcomes import GroupOutcome, result_of
from agentrl.rollout.curation.rules import CurationContext, check
from agentrl.rollout.curation.state_json import encode
from agentrl.rollout.curation.steps import compute_kept_share, turn_weights
from agentrl.rollout.curation.success_pool import SuccessLoan
from agentrl.rollout.curation.task_curator import CuratedBatch, TaskCurator
from agentrl.rollout.scheduler.topology import GroupEnd, GroupProgress, RolloutHooks, RolloutKey
from agentrl.store.trajectory_copy import TrajectoryCopy, keep_members, replace_branch
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCuration:
    """State of curation in a checkpoint. JSON through `saved.encode` and `saved.decode`."""

    state: CurationState
    dropped: tuple[JudgedGroup, ...] = ()
    """Groups that were dropped after the latest batch: the next one learns from them."""
    learnt: tuple[int, ...] = ()
    """Groups that have been learnt from and are in no batch yet."""


@dataclass(slots=True, kw_only=True)
class GroupCuration:
    """Curation of a scheduler's groups: `tasks`, `hooks`, and after each batch `batch`.

    Raises `ConfigError` for rules that contradict each other.
    """

    curator: TaskCurator
    wanted: int
    version: int = 0
    """Version of the trainer; set it with every `load`."""
    flying: Callable[[], Iterable[Task]] = tuple
    """Tasks in no batch yet: the scheduler's `list_unfinished`."""
    saved_before: SavedCuration | None = None

    _rounds: int = 0
    _left: int = 0
    """Tasks that the latest round was asked for and a killed run has not begun."""
    _recalled: int = 0
    """The version of the step that `_drawn`, `_rounds` and `_left` are of."""
    _kept: tuple[GroupState, ...] = ()
    _learnt: set[int] = field(default_factory=set[int])
    _waiting: dict[int, tuple[Tree, int]] = field(default_factory=dict[int, tuple[Tree, int]])
    """Groups that were judged and are in no batch yet, with their numbers."""
    _groups: int = field(init=False)
    _trees: dict[int, Tree] = field(default_factory=dict[int, Tree])
    _drawn: set[str] = field(default_factory=set[str])
    _judged: list[JudgedGroup] = field(default_factory=list[JudgedGroup])
    _new_loans: list[SuccessLoan] = field(default_factory=list[SuccessLoan])
    _loans: dict[int, tuple[Tree, SuccessLoan]] = field(
        default_factory=dict[int, tuple[Tree, SuccessLoan]]
    )
    _members: dict[int, tuple[Tree, frozenset[int]]] = field(
        default_factory=dict[int, tuple[Tree, frozenset[int]]]
    )

    def __post_init__(self) -> None:
        self._groups = self.curator.state.groups
        around = CurationContext(
            group_size=self.curator.group_size,
            tasks_per_step=self.wanted,
            tasks=self.curator.source.tasks or 2**63,
            entropies=True,
        )
        check(self.curator.rules, around)
        if self.saved_before is not None:
            self._judged += self.saved_before.dropped
            self._learnt |= {*self.saved_before.learnt}

    @property
    def saved(self) -> dict[str, Any]:
        """Return a `SavedCuration` as JSON: what the batches so far have led to.

        A group that was kept after the latest batch is none of it: it is judged again.
        """
        dropped = [judged for judged in self._judged if judged.verdict != "kept"]
        fresh = {judged.group.ordinal for judged in self._judged}
        waiting = {number for _, number in self._waiting.values()} - fresh
        return encode(
            SavedCuration(
                state=self.curator.state,
                dropped=tuple(dropped),
                learnt=tuple(sorted(waiting | self._learnt)),
            )
        )

    @property
    def stored(self) -> dict[str, TrajectoryCopy]:
        """Return the trajectories that `saved` names, which may be lent later."""
        copies = self.curator.branches
        return {ref: copies[ref] for ref in sorted(self.curator.state.pool.refs) if ref in copies}

    def first_group(self, version: int) -> int:
        """Return the number of the first group to begin, for a trainer at `version`."""
        return max(self.curator.state.groups, version * self.wanted)

    def tasks(self, count: int) -> list[GroupRequest]:
        """Return the next orders; with a sampler, of no task that is in flight, and new ones first.

        None when the step has dropped all it may: then the scheduler ends it with what there is.
        Raises `NothingToLearn` when that is nothing, or the filter says so.
        """
        rule = self.curator.rules.filter
        if rule is not None and self._dropped >= self.wanted * (rule.max_refills + 1):
            if rule.short == "stop" or not any(True for _ in self.flying()):
                raise self._build_error(rule)
            return []
        return self._next(count)

    def _next(self, count: int) -> list[GroupRequest]:
        flying = {task.id for task in self.flying()}
        orders = self._resume_round(count)
        if missing := count - len(orders):
            orders += self._take(missing, {*self._drawn, *flying, *_tasks_of(orders)})
        if missing := count - len(orders):
            # All others were drawn in this step already: they come again rather than nothing.
            orders += self._take(missing, {*flying, *_tasks_of(orders)})
        self._drawn |= _tasks_of(orders)
        return orders

    def keep(self, groups: Sequence[GroupState]) -> None:
        """Go on with groups that a record kept, before the scheduler adopts them.

        What was drawn counts in the step in which it was, and a round that was cut short is drawn
        to its end.
        """
        self._kept = tuple(groups)
        self._recall(self.version)

    def _recall(self, version: int) -> None:
        rounds = [one.request for one in self._kept if one.opened.step == version]
        rounds = [request for request in rounds if request.round]
        self._recalled = version
        self._rounds = max((request.round for request in rounds), default=0)
        self._drawn = {request.task.id for request in rounds}
        latest = [request for request in rounds if request.round == self._rounds]
        self._left = latest[0].round_size - len(latest) if latest else 0

    def _resume_round(self, count: int) -> list[GroupRequest]:
        backlog, self._left = self._left, 0
        if not backlog:
            return []
        source, state, number = self.curator.source, self.curator.state, self._rounds
        mine = [one.request for one in self._kept if one.opened.step == self._recalled]
        mine = [request for request in mine if request.round]
        begun = {request.task.id for request in mine if request.round == number}
        if not source.tasks:  # they come one after the other
            tasks = source.take(state, min(backlog, count), round_number=number, taken=())
        else:
            flying = {task.id for task in self.flying()} - begun
            before = {request.task.id for request in mine if request.round < number}
            size = len(begun) + backlog
            drawn = source.take(state, size, round_number=number, taken={*flying, *before})
            tasks = [task for task in drawn if task.id not in begun][:count]
        return [self._order(task, number, len(begun) + backlog) for task in tasks]

    @property
    def hooks(self) -> RolloutHooks:
        """Callbacks for the scheduler."""
        return RolloutHooks(
            on_finished=self._on_finished,
            more=self._more,
            more_by_step=self.curator.rules.allocation.by_step,
            on_group=self._on_group,
        )

    def batch(self, trees: Sequence[Tree]) -> CuratedBatch:
        """Take the trees of a batch, learn from all groups since the last one, and mark loans."""
        curator, before = self.curator, self.curator.state
        collection = StepCollection(
            step=before.steps,
            judged=tuple(self._judged),
            rounds=self._rounds,
        )
        curator.state = update_state(
            curator.rules,
            before,
            collection,
            self._new_loans,
            drawn=self._drawn,
            version=self.version,
            position=curator.source.position,
            tasks=curator.source.tasks,
        )
        curator.state = replace(curator.state, groups=self._groups)
        account = StepAccount(
            collection=collection,
            loans=tuple(self._new_loans),
            base=curator.group_size,
            trains=curator.trains,
        )
        pairs = [self._loans.pop(id(tree), (tree, None)) for tree in trees]
        members = [self._members.pop(id(tree), (tree, None))[1] for tree in trees]
        lent = tuple(
            self._build_train_tree(tree, loan, samples)
            for (tree, loan), samples in zip(pairs, members, strict=True)
        )
        for tree in trees:
            self._waiting.pop(id(tree), None)
        self._judged, self._new_loans = [], []
        self._recall(self.version + 1)
        self._forget()
        metrics = {**figures(account), "curation/short": float(self.wanted - len(trees))}
        weights = None
        if (rule := curator.rules.steps) is not None:
            weights = tuple(turn_weights(tree, rule) for tree in lent)
            metrics["curation/steps_kept"] = compute_kept_share(weights)
        return CuratedBatch(
            trees=lent,
            weights=weights,
            loans=tuple(loan for _, loan in pairs if loan),
            figures=metrics,
        )

    def _take(self, count: int, taken: set[str]) -> list[GroupRequest]:
        source, state, number = self.curator.source, self.curator.state, self._rounds + 1
        tasks = source.take(state, count, round_number=number, taken=taken)
        if tasks:
            self._rounds = number
        return [self._order(task, number, count) for task in tasks]

    def _order(self, task: Task, round: int, round_size: int) -> GroupRequest:
        curator = self.curator
        allotment = curator.rules.allocation.first(
            find_record(curator.state, task.id),
            base=curator.group_size,
            max_turns=curator.max_turns,
        )
        return GroupRequest(
            task=task,
            trajectories=allotment.trajectories,
            max_turns=allotment.max_turns,
            round=round,
            round_size=round_size,
        )

    def _on_finished(self, attempt: RolloutKey, tree: Tree, leaf: Leaf) -> None:
        self._trees[attempt.group] = tree
        self._groups = max(self._groups, attempt.group + 1)

    def _more(self, ends: Sequence[GroupEnd]) -> list[int]:
        groups = [self._result(state, leaves) for state, leaves in ends]
        return self.curator.rules.allocation.more(groups, base=self.curator.group_size)

    def _result(self, state: GroupProgress, leaves: Sequence[Leaf]) -> GroupOutcome:
        tree = self._trees[state.number]
        return GroupOutcome(
            step=self.curator.state.steps,
            ordinal=state.number,
            task_id=tree.task.id,
            asked=state.target,
            results=tuple(result_of(tree, leaf) for leaf in leaves),
        )

    def _on_group(self, state: GroupProgress, leaves: Sequence[Leaf]) -> bool:
        group = self._result(state, leaves)
        tree = self._trees.pop(state.number)
        loan = self.curator.loan(group, version=self.version)
        verdict, members = self.curator.judge(group, loan)
        self._withdraw(group.key, tree)
        learnt = state.number in self._learnt
        self._learnt.discard(state.number)
        if not learnt:
            self._judged.append(JudgedGroup(group=group, verdict=verdict))
        self.curator.remember(group, tree, leaves)
        if verdict == "kept":
            self._waiting[id(tree)] = tree, state.number
        if verdict == "kept" and loan:
            if not learnt:
                self._new_loans.append(loan)
            self._loans[id(tree)] = tree, loan
        if verdict == "kept" and self.curator.rules.members is not None:
            self._members[id(tree)] = tree, members
        return verdict == "kept"

    def _withdraw(self, key: str, tree: Tree) -> None:
        """Forget an earlier end of a group in this step, which was begun again for its age."""
        self._judged = [judged for judged in self._judged if judged.group.key != key]
        self._new_loans = [loan for loan in self._new_loans if loan.group != key]
        self._loans.pop(id(tree), None)
        self._members.pop(id(tree), None)
        self._waiting.pop(id(tree), None)

    @property
    def _dropped(self) -> int:
        return sum(judged.verdict != "kept" for judged in self._judged)

    def _build_error(self, rule: DynamicSamplingFilter) -> NothingToLearn:
        step = self.curator.state.steps + 1  # counted as metrics and progress do
        return NothingToLearn(
            f"step {step} dropped {self._dropped} groups that cannot train and still needs "
            f"{self.wanted} that can; {rule.ways_out}"
        )

    def _build_train_tree(
        self, tree: Tree, loan: SuccessLoan | None, members: frozenset[int] | None
    ) -> Tree:
        if loan is not None:
            branch = self.curator.branches[loan.ref]
            tree = replace_branch(tree, branch, sample=loan.result.sample, age=loan.age)
        return tree if members is None else keep_members(tree, members)

    def _forget(self) -> None:
        flying = {id(task) for task in self.flying()}
        self._trees = {n: tree for n, tree in self._trees.items() if id(tree.task) in flying}
        self._waiting = {
            key: (tree, n) for key, (tree, n) in self._waiting.items() if id(tree.task) in flying
        }
        # A loan in a group that waits for a later batch must still find its trajectory then.
        copies = {loan.ref: self.curator.branches[loan.ref] for _, loan in self._loans.values()}
        self.curator.keep_stored()
        self.curator.branches |= copies


def _tasks_of(orders: Iterable[GroupRequest]) -> set[str]:
    return {order.task.id for order in orders}
