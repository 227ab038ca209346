"""Metrics of curation in one step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.rollout.curation.curator import DROPPED, StepCollection
from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.success_pool import SuccessLoan, apply_loan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """A finished step, its loans and the samples that train."""

    collection: StepCollection
    loans: tuple[SuccessLoan, ...]
    base: int
    """Trajectories that a task gets without allocation."""
    trains: Callable[[GroupOutcome], frozenset[int]]

    @property
    def sampled_tokens(self) -> int:
        """Return the tokens sampled in this step."""
        return _tokens([judged.group for judged in self.collection.judged])

    @property
    def trained_tokens(self) -> int:
        """Return the tokens that train, loans not among them: an earlier step sampled those."""
        lent = {loan.group: loan.result.sample for loan in self.loans}
        return sum(
            result.tokens
            for group in self._batch
            for result in group.valid
            if result.sample in self.trains(group) - {lent.get(group.key)}
        )

    @property
    def left_out(self) -> int:
        """Number of trajectories with a reward that do not train, in groups that train."""
        return sum(len(group.valid) - len(self.trains(group)) for group in self._batch)

    @property
    def _batch(self) -> tuple[GroupOutcome, ...]:
        lent = {loan.group: loan for loan in self.loans}
        return tuple(
            apply_loan(group, lent[group.key]) if group.key in lent else group
            for group in self.collection.kept
        )

    @property
    def wasted_tokens(self) -> int:
        """Return the tokens that were sampled and will never train.

        Of dropped groups; in groups that train, of failures, of trajectories that a loan replaced
        and of those that are left out.
        """
        return self.sampled_tokens - self.trained_tokens


def figures(account: StepAccount) -> dict[str, float]:
    """Return the figures of a step, all under `curation/`."""
    state = account.collection
    verdicts = Counter(judged.verdict for judged in state.judged)
    sizes = [judged.group.asked for judged in state.judged]
    sampled = account.sampled_tokens
    metrics: dict[str, float] = {
        "kept": verdicts["kept"],
        **{f"dropped_{name}": verdicts[name] for name in DROPPED},
        "rounds": state.rounds,
        "trajectories_asked": sum(sizes),
        "trajectories_extra": sum(sizes) - account.base * len(sizes),
        "trajectories_max": max(sizes, default=0),
        "members_left_out": account.left_out,
        "loans": len(account.loans),
        "loan_age_max": max((loan.age for loan in account.loans), default=0),
        "tokens_wasted": account.wasted_tokens,
        "tokens_wasted_fraction": account.wasted_tokens / sampled if sampled else 0.0,
    }
    return {f"curation/{name}": float(value) for name, value in metrics.items()}


def _tokens(groups: Sequence[GroupOutcome]) -> int:
    return sum(group.tokens for group in groups)
