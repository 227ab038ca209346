"""DART's experience pool: an old success lent to a group that has none. Source: arXiv 2509.23866.

The state holds names and versions, no tokens: whoever owns the trees keeps those it names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary, sort_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSuccess:
    """A stored trajectory that succeeded."""

    group: str
    result: RolloutSummary
    used: int = 0
    """In how many batches it was lent."""

    @property
    def ref(self) -> str:
        """Name of the trajectory within its run."""
        return f"{self.group}/{self.result.sample}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The newest successes of each task, the newest last."""

    successes: Mapping[str, tuple[PooledSuccess, ...]] = field(
        default_factory=dict[str, tuple[PooledSuccess, ...]]
    )

    @property
    def refs(self) -> frozenset[str]:
        """Return the trajectories whose tokens must be kept."""
        return frozenset(s.ref for entries in self.successes.values() for s in entries)

    def holding(self, refs: Collection[str]) -> "PoolState":
        """Return the pool of those of its trajectories that `refs` names."""
        pool = {
            task: tuple(success for success in entries if success.ref in refs)
            for task, entries in self.successes.items()
        }
        return PoolState(successes={task: entries for task, entries in pool.items() if entries})


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessLoan:
    """Trajectory lent to a group, marked as lent wherever it goes."""

    group: str
    ref: str
    result: RolloutSummary
    """Result of the lent trajectory, under the index it has in its new group."""
    age: int
    """Trainer version minus its oldest sampled token's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessPool:
    """Limits on the successes that may be lent."""

    max_age: int | None = 8
    """Oldest version difference of a lent token; null lends any (the released code)."""
    max_uses: int | None = 4
    """Batches one success may be lent to; null sets no bound (the released code)."""
    per_task: int = 4

    def lend(
        self, state: PoolState, group: GroupOutcome, *, version: int, success_above: float
    ) -> SuccessLoan | None:
        """Return the newest success there is for a group that has none, or None.

        It takes the place of the group's oldest trajectory. A group in which everything failed
        gets none: nothing is known of how the policy does on it now.
        """
        if not group.valid or max(group.rewards) > success_above:
            return None
        out = min(group.valid, key=lambda result: (result.version, result.sample))
        for success in reversed(state.successes.get(group.task_id, ())):
            age = version - success.result.version
            if self._may_lend(success, age):
                result = replace(success.result, sample=out.sample)
                return SuccessLoan(group=group.key, ref=success.ref, result=result, age=age)
        return None

    def _may_lend(self, success: PooledSuccess, age: int) -> bool:
        young = self.max_age is None or age <= self.max_age
        fresh = self.max_uses is None or success.used < self.max_uses
        return young and fresh

    def observe(
        self,
        state: PoolState,
        groups: Iterable[GroupOutcome],
        loans: Iterable[SuccessLoan],
        *,
        version: int,
        success_above: float,
    ) -> PoolState:
        """Return the pool after a step at trainer version `version`.

        `groups` are as they were sampled, without loans; neither their order nor that of `loans`
        matters. What can never be lent again is forgotten.
        """
        uses: dict[str, int] = {}
        for loan in loans:
            uses[loan.ref] = uses.get(loan.ref, 0) + 1
        after = {task: list(entries) for task, entries in state.successes.items()}
        for group in sort_groups(groups):
            won = [r for r in group.valid if (r.reward or 0.0) > success_above]
            after.setdefault(group.task_id, []).extend(
                PooledSuccess(group=group.key, result=result) for result in won
            )
        pool = {task: self._keep_newest(entries, uses, version) for task, entries in after.items()}
        return PoolState(successes={task: entries for task, entries in pool.items() if entries})

    def _keep_newest(
        self, held: Iterable[PooledSuccess], uses: Mapping[str, int], version: int
    ) -> tuple[PooledSuccess, ...]:
        counted = [replace(s, used=s.used + uses.get(s.ref, 0)) for s in held]
        able = [s for s in counted if self._may_lend(s, version - s.result.version)]
        # Stable: of equal versions the one drawn last counts as the newest.
        return tuple(sorted(able, key=lambda s: s.result.version)[-self.per_task :])


def apply_loan(group: GroupOutcome, loan: SuccessLoan) -> GroupOutcome:
    """Return the group with the lent trajectory in the place of the one it replaces."""
    results = tuple(r for r in group.results if r.sample != loan.result.sample)
    return replace(group, results=(*results, loan.result))
