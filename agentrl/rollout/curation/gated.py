"""Curation behind a gate, which opens groups, replaces dropped ones and lets surplus wait itself.

Groups may begin in one step and end in another, so each counts in the step in which it ends; one
that is begun again for its age counts again when it ends again. The gate decides how many groups to
open; the allocation says how large each is, and a second phase lets its group grow where it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.rollout.curation.collection import Collection, Judged
from agentrl.rollout.curation.curated_step import Curated, Curator
from agentrl.rollout.curation.curator import after_step, record_of
from agentrl.rollout.curation.dapo import NothingToLearn
from agentrl.rollout.curation.figures import StepAccount, figures
from agentrl.rollout.curation.graft import Branch, with_branch, with_members
from agentrl.rollout.curation.outcomes import GroupResult, result_of
from agentrl.rollout.curation.rules import Surroundings, check
from agentrl.rollout.curation.saved import encode
from agentrl.rollout.curation.steps import kept_share, turn_weights
from agentrl.rollout.curation.success_pool import Loan
from agentrl.rollout.recorder import KeptGroup
from agentrl.scheduler import Attempt, GroupState, Hooks, Order
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


@dataclass(slots=True, kw_only=True)
class GatedCuration:
    """What a gate asks and tells: `tasks`, `hooks`, and after each batch `batch`.

    Raises `ConfigError` for rules that only a step without a gate can follow.
    """

    curator: Curator
    wanted: int
    """Groups in a batch."""
    version: int = 0
    """Of the trainer; set it with every `load`."""
    flying: Callable[[], Iterable[Task]] = tuple
    """Tasks in no batch yet: the gate's `unfinished`."""

    _rounds: int = 0
    _groups: int = field(init=False)
    _trees: dict[int, Tree] = field(default_factory=dict[int, Tree])
    _grown: dict[int, Task] = field(default_factory=dict[int, Task])
    _drawn: set[str] = field(default_factory=set[str])
    _judged: list[Judged] = field(default_factory=list[Judged])
    _new_loans: list[Loan] = field(default_factory=list[Loan])
    _loans: dict[int, tuple[Tree, Loan]] = field(default_factory=dict[int, tuple[Tree, Loan]])
    _members: dict[int, tuple[Tree, frozenset[int]]] = field(
        default_factory=dict[int, tuple[Tree, frozenset[int]]]
    )

    def __post_init__(self) -> None:
        self._groups = self.curator.state.groups
        around = Surroundings(
            group_size=self.curator.group_size,
            tasks_per_step=self.wanted,
            tasks=self.curator.source.tasks or 2**63,
            entropies=True,
            gated=True,
        )
        check(self.curator.rules, around)

    @property
    def saved(self) -> dict[str, Any]:
        """Return the state after the latest batch as JSON, for `saved.decode`."""
        return encode(self.curator.state)

    @property
    def stored(self) -> dict[str, Branch]:
        """Return the trajectories that `saved` names, which may be lent later."""
        held = self.curator.branches
        return {ref: held[ref] for ref in sorted(self.curator.state.pool.refs) if ref in held}

    def first_group(self, version: int) -> int:
        """Return the number of the first group to begin, for a trainer at `version`."""
        return max(self.curator.state.groups, version * self.wanted)

    def tasks(self, count: int) -> list[Order]:
        """Return the next orders; with a sampler, of no task that is in flight, and new ones first.

        None when the step has dropped all it may: then the gate ends it with what there is. Raises
        `NothingToLearn` when that is nothing, or the filter says so.
        """
        rule = self.curator.rules.filter
        if rule is not None and self._dropped >= self.wanted * (rule.max_refills + 1):
            if rule.short == "stop" or not any(True for _ in self.flying()):
                raise self._nothing_to_learn()
            return []
        return [self._order(task) for task in self._next(count)]

    def _next(self, count: int) -> list[Task]:
        flying = {task.id for task in self.flying()}
        found = self._take(count, {*self._drawn, *flying})
        if missing := count - len(found):
            # All others were drawn in this step already: they come again rather than nothing.
            found += self._take(missing, {*flying, *(task.id for task in found)})
        self._drawn |= {task.id for task in found}
        return found

    def keep(self, groups: Iterable[KeptGroup]) -> None:
        """Go on with groups that a record kept, before the gate adopts them.

        One that was enlarged has had its second phase.
        """
        self._grown |= {g.number: g.tree.task for g in groups if g.size != g.asked}

    @property
    def hooks(self) -> Hooks:
        """Return what the gate is to call."""
        return Hooks(on_finished=self._on_finished, more=self._more, on_group=self._on_group)

    def batch(self, trees: Sequence[Tree]) -> Curated:
        """Take the trees of a batch, learn from all groups since the last one, and mark loans."""
        curator, before = self.curator, self.curator.state
        collection = Collection(
            step=before.steps,
            wanted=len(self._judged),
            judged=tuple(self._judged),
            rounds=self._rounds,
        )
        curator.state = after_step(
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
            abandoned=(),
            carried_before=(),
            carried_after=(),
            base=curator.group_size,
            trains=curator.trains,
        )
        held = [self._loans.pop(id(tree), (tree, None)) for tree in trees]
        members = [self._members.pop(id(tree), (tree, None))[1] for tree in trees]
        lent = tuple(
            self._as_it_trains(tree, loan, kept)
            for (tree, loan), kept in zip(held, members, strict=True)
        )
        self._rounds, self._judged, self._new_loans, self._drawn = 0, [], [], set()
        self._forget()
        found = {**figures(account), "curation/short": float(self.wanted - len(trees))}
        weights = None
        if (rule := curator.rules.steps) is not None:
            weights = tuple(turn_weights(tree, rule) for tree in lent)
            found["curation/steps_kept"] = kept_share(weights)
        return Curated(
            trees=lent,
            weights=weights,
            loans=tuple(loan for _, loan in held if loan),
            figures=found,
        )

    def _take(self, count: int, taken: set[str]) -> list[Task]:
        source, state, number = self.curator.source, self.curator.state, self._rounds + 1
        found = source.take(state, count, round_number=number, taken=taken)
        if found:
            self._rounds = number
        return found

    def _order(self, task: Task) -> Order:
        curator = self.curator
        allotment = curator.rules.allocation.first(
            record_of(curator.state, task.id), base=curator.group_size, max_turns=curator.max_turns
        )
        return Order(task=task, trajectories=allotment.trajectories, max_turns=allotment.max_turns)

    def _on_finished(self, attempt: Attempt, tree: Tree, leaf: Leaf) -> None:
        self._trees[attempt.group] = tree
        self._groups = max(self._groups, attempt.group + 1)

    def _more(self, state: GroupState, leaves: Sequence[Leaf]) -> int:
        if state.number in self._grown:
            return 0
        self._grown[state.number] = self._trees[state.number].task
        allocation, base = self.curator.rules.allocation, self.curator.group_size
        return allocation.more(self._result(state, leaves), base=base)

    def _result(self, state: GroupState, leaves: Sequence[Leaf]) -> GroupResult:
        tree = self._trees[state.number]
        return GroupResult(
            step=self.curator.state.steps,
            ordinal=state.number,
            task_id=tree.task.id,
            asked=state.target,
            results=tuple(result_of(tree, leaf) for leaf in leaves),
        )

    def _on_group(self, state: GroupState, leaves: Sequence[Leaf]) -> bool:
        group = self._result(state, leaves)
        tree = self._trees.pop(state.number)
        loan = self.curator.loan(group, version=self.version)
        found, members = self.curator.judged(group, loan)
        self._withdraw(group.key, tree)
        self._judged.append(Judged(group=group, verdict=found))
        self.curator.remember(group, tree, leaves)
        if found == "kept" and loan:
            self._new_loans.append(loan)
            self._loans[id(tree)] = tree, loan
        if found == "kept" and self.curator.rules.members is not None:
            self._members[id(tree)] = tree, members
        return found == "kept"

    def _withdraw(self, key: str, tree: Tree) -> None:
        """Forget an earlier end of a group in this step, which was begun again for its age."""
        self._judged = [judged for judged in self._judged if judged.group.key != key]
        self._new_loans = [loan for loan in self._new_loans if loan.group != key]
        self._loans.pop(id(tree), None)
        self._members.pop(id(tree), None)

    @property
    def _dropped(self) -> int:
        return sum(judged.verdict != "kept" for judged in self._judged)

    def _nothing_to_learn(self) -> NothingToLearn:
        return NothingToLearn(
            f"step {self.curator.state.steps} dropped {self._dropped} groups that can teach "
            f"nothing, and wants {self.wanted} that can; raise curation.filter.max_refills, choose "
            "tasks nearer to what the policy can do, or set curation.filter.short: train"
        )

    def _as_it_trains(self, tree: Tree, loan: Loan | None, members: frozenset[int] | None) -> Tree:
        if loan is not None:
            branch = self.curator.branches[loan.ref]
            tree = with_branch(tree, branch, sample=loan.result.sample, age=loan.age)
        return tree if members is None else with_members(tree, members)

    def _forget(self) -> None:
        flying = {id(task) for task in self.flying()}
        self._trees = {n: tree for n, tree in self._trees.items() if id(tree.task) in flying}
        self._grown = {n: task for n, task in self._grown.items() if id(task) in flying}
        # A loan in a group that waits for a later batch must still find its trajectory then.
        held = {loan.ref: self.curator.branches[loan.ref] for _, loan in self._loans.values()}
        self.curator.keep_stored({})
        self.curator.branches |= held
