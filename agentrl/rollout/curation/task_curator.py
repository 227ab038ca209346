"""The curator: rules, the state that outlives a step, and the trajectories it may lend."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from agentrl.rollout.curation.curator import CuratedTaskSource, CurationState, build_first_state
from agentrl.rollout.curation.dapo import Verdict, verdict
from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.success_pool import SuccessLoan, apply_loan
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.store.trajectory_copy import TrajectoryCopy, copy_branch
from agentrl.trajectory import Leaf, Tree

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CuratedBatch:
    """Batch of a step: trees, loss weights and loans."""

    trees: tuple[Tree, ...]
    """In the order their groups were drawn, whatever order they ended in."""
    weights: tuple[Mapping[int, Mapping[int, float]], ...] | None = None
    """Per tree, by sample and turn, what multiplies the loss of its tokens; None is 1 for all."""
    loans: tuple[SuccessLoan, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


class TaskCurator:
    """Curates one step after the other. Its whole state is `state` and `branches`."""

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
    ) -> None:
        """Begin, or go on from a saved `state`.

        `branches` are those of the curator then, by name; what is missing of them is not lent, and
        the run is no longer exactly the one that was saved.
        """
        self.rules = rules
        self.seed = seed
        self.group_size = group_size
        self.max_turns = max_turns
        self.source = CuratedTaskSource(rules, stream, seed=seed)
        self.branches = dict(branches or {})
        self.state = build_first_state(rules) if state is None else self._lendable(state)
        if state is not None:
            self.source.restore(state)

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
        return rule.choose_samples(group, seed=self.seed, success_above=above)

    def judge(
        self, group: GroupOutcome, loan: SuccessLoan | None
    ) -> tuple[Verdict, frozenset[int]]:
        """Return whether a group trains, and which of its samples would."""
        lent = apply_loan(group, loan) if loan else group
        members = self.trains(lent)
        cut = replace(
            lent, results=tuple(r for r in lent.results if r.reward is None or r.sample in members)
        )
        rule = self.rules.filter
        return verdict(cut, rule) if rule else "kept", members

    def _lendable(self, state: CurationState) -> CurationState:
        return replace(state, pool=state.pool.holding(self.branches.keys()))

    def remember(self, group: GroupOutcome, tree: Tree, leaves: Iterable[Leaf]) -> None:
        """Store a group's trajectories by name, until `keep_stored` knows which to keep."""
        if self.rules.pool is not None:
            for leaf in leaves:
                self.branches[f"{group.key}/{leaf.sample}"] = copy_branch(tree, leaf)

    def keep_stored(self) -> None:
        """Forget the trajectories that the state no longer names."""
        self.branches = _only(self.branches, self.state.pool.refs)


def _only(held: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    name_set = {*names}
    return {name: value for name, value in held.items() if name in name_set}
