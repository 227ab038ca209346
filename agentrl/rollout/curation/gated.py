"""Curation behind a gate, which opens groups, replaces dropped ones and lets surplus wait itself.

Groups may begin in one step and end in another, so each counts in the step in which it ends; one
that is begun again for its age counts again when it ends again. The gate decides how many groups to
open; allocation is not for it: every group has its policy's size.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.errors import ConfigError
from agentrl.rollout.curation.allocation import Fixed
from agentrl.rollout.curation.collection import Collection, Judged
from agentrl.rollout.curation.curated_step import Curated, Curator
from agentrl.rollout.curation.curator import after_step
from agentrl.rollout.curation.dapo import NothingToLearn, verdict
from agentrl.rollout.curation.figures import StepAccount, figures
from agentrl.rollout.curation.graft import with_branch
from agentrl.rollout.curation.outcomes import GroupResult, result_of
from agentrl.rollout.curation.steps import turn_weights
from agentrl.rollout.curation.success_pool import Loan, with_loan
from agentrl.scheduler import Attempt, GroupState, Hooks
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


@dataclass(slots=True, kw_only=True)
class GatedCuration:
    """What a gate asks and tells: `tasks`, `hooks`, and after each batch `batch`.

    Raises `ConfigError` for rules that change the size of a group, or how many groups are opened.
    """

    curator: Curator
    wanted: int
    """Groups in a batch."""
    version: int = 0
    """Of the trainer; set it with every `load`."""
    flying: Callable[[], Iterable[Task]] = tuple
    """Tasks in no batch yet: the gate's `unfinished`."""

    _rounds: int = 0
    _trees: dict[int, Tree] = field(default_factory=dict[int, Tree])
    _drawn: set[str] = field(default_factory=set[str])
    _judged: list[Judged] = field(default_factory=list[Judged])
    _new_loans: list[Loan] = field(default_factory=list[Loan])
    _loans: dict[int, tuple[Tree, Loan]] = field(default_factory=dict[int, tuple[Tree, Loan]])

    def __post_init__(self) -> None:
        if not isinstance(self.curator.rules.allocation, Fixed):
            raise ConfigError(
                "curation.allocation.name changes how many trajectories a task gets, and the gate "
                "gives every group rollout.group_size; set curation.allocation.name: fixed"
            )
        rule = self.curator.rules.filter
        if rule is not None and (rule.oversample != 1 or rule.refill != "missing"):
            raise ConfigError(
                "curation.filter.oversample and curation.filter.refill say how many groups to "
                "open, and behind the gate rollout.over_provision does; leave them at 1 and missing"
            )

    def tasks(self, count: int) -> list[Task]:
        """Return the next tasks; with a sampler, none that is in flight, and new ones first."""
        flying = {task.id for task in self.flying()}
        found = self._take(count, {*self._drawn, *flying})
        if missing := count - len(found):
            # All others were drawn in this step already: they come again rather than nothing.
            found += self._take(missing, {*flying, *(task.id for task in found)})
        self._drawn |= {task.id for task in found}
        return found

    @property
    def hooks(self) -> Hooks:
        """Return what the gate is to call."""
        return Hooks(on_finished=self._on_finished, on_group=self._on_group)

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
        account = StepAccount(
            collection=collection,
            loans=tuple(self._new_loans),
            abandoned=(),
            carried_before=(),
            carried_after=(),
            base=curator.group_size,
        )
        held = [self._loans.pop(id(tree), (tree, None)) for tree in trees]
        lent = tuple(self._with_loan(tree, loan) for tree, loan in held)
        self._rounds, self._judged, self._new_loans, self._drawn = 0, [], [], set()
        self._forget()
        rule = curator.rules.steps
        return Curated(
            trees=lent,
            weights=tuple(turn_weights(tree, rule) for tree in lent) if rule else None,
            loans=tuple(loan for _, loan in held if loan),
            figures=figures(account),
        )

    def _take(self, count: int, taken: set[str]) -> list[Task]:
        source, state = self.curator.source, self.curator.state
        self._rounds += 1
        return source.take(state, count, round_number=self._rounds, taken=taken)

    def _on_finished(self, attempt: Attempt, tree: Tree, leaf: Leaf) -> None:
        self._trees[attempt.group] = tree

    def _on_group(self, state: GroupState, leaves: Sequence[Leaf]) -> bool:
        tree, rules = self._trees.pop(state.number), self.curator.rules
        group = GroupResult(
            step=self.curator.state.steps,
            ordinal=state.number,
            task_id=tree.task.id,
            asked=state.target,
            results=tuple(result_of(tree, leaf) for leaf in leaves),
        )
        loan = self.curator.loan(group, version=self.version)
        judged = with_loan(group, loan) if loan else group
        found = verdict(judged, rules.filter) if rules.filter else "kept"
        self._withdraw(group.key, tree)
        self._judged.append(Judged(group=group, verdict=found))
        self.curator.remember(group, tree, leaves)
        if found == "kept" and loan:
            self._new_loans.append(loan)
            self._loans[id(tree)] = tree, loan
        self._check_budget()
        return found == "kept"

    def _withdraw(self, key: str, tree: Tree) -> None:
        """Forget an earlier end of a group in this step, which was begun again for its age."""
        self._judged = [judged for judged in self._judged if judged.group.key != key]
        self._new_loans = [loan for loan in self._new_loans if loan.group != key]
        self._loans.pop(id(tree), None)

    def _check_budget(self) -> None:
        rule = self.curator.rules.filter
        dropped = sum(judged.verdict != "kept" for judged in self._judged)
        if rule is not None and dropped > self.wanted * (rule.max_refills + 1):
            raise NothingToLearn(
                f"step {self.curator.state.steps} dropped {dropped} groups that can teach nothing, "
                f"and wants {self.wanted} that can; raise curation.filter.max_refills, or choose "
                "tasks nearer to what the policy can do"
            )

    def _with_loan(self, tree: Tree, loan: Loan | None) -> Tree:
        if loan is None:
            return tree
        branch = self.curator.branches[loan.ref]
        return with_branch(tree, branch, sample=loan.result.sample, age=loan.age)

    def _forget(self) -> None:
        flying = {id(task) for task in self.flying()}
        self._trees = {n: tree for n, tree in self._trees.items() if id(tree.task) in flying}
        # A loan in a group that waits for a later batch must still find its trajectory then.
        held = {loan.ref: self.curator.branches[loan.ref] for _, loan in self._loans.values()}
        self.curator.keep_stored({})
        self.curator.branches |= held
