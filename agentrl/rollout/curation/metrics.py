"""Metrics of curation in one step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.rollout.curation.collection import DROPPED, StepCollection
from agentrl.rollout.curation.length_bias import length_bias
from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.success_pool import SuccessLoan, with_loan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """A finished step, and what came into it and went out of it."""

    collection: StepCollection
    loans: tuple[SuccessLoan, ...]
    """Loans of the batch."""
    abandoned: tuple[GroupOutcome, ...]
    """Results so far of groups that were stopped on the way."""
    carried_before: tuple[GroupOutcome, ...]
    carried_after: tuple[GroupOutcome, ...]
    base: int
    """Trajectories that a task gets without allocation."""
    trains: Callable[[GroupOutcome], frozenset[int]]
    """Selection of a group's samples that train, its loan included."""

    @property
    def sampled_tokens(self) -> int:
        """Return the tokens sampled in this step."""
        ended = [judged.group for judged in self.collection.judged]
        return _tokens([*ended, *self.abandoned])

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
        """Return the groups that train, as their loans leave them."""
        lent = {loan.group: loan for loan in self.loans}
        return tuple(
            with_loan(group, lent[group.key]) if group.key in lent else group
            for group in self.collection.batch
        )

    @property
    def wasted_tokens(self) -> int:
        """Return the tokens that came in or were sampled and will never train.

        Of dropped, abandoned and expired groups; in groups that train, of failures, of
        trajectories that a loan replaced and of those that are left out.
        """
        came = _tokens(self.carried_before) + self.sampled_tokens
        return came - self.trained_tokens - _tokens(self.carried_after)


def figures(account: StepAccount) -> dict[str, float]:
    """Return the figures of a step, all under `curation/`."""
    state = account.collection
    verdicts = Counter(judged.verdict for judged in state.judged)
    trajectories = sum(judged.group.asked for judged in state.judged)
    came = account.sampled_tokens + _tokens(account.carried_before)
    metrics: dict[str, float] = {
        "kept": verdicts["kept"],
        **{f"dropped_{name}": verdicts[name] for name in DROPPED},
        "surplus": len(state.surplus),
        "carried_in": len(state.carried),
        "short": state.wanted - len(state.batch),
        "rounds": state.rounds,
        "trajectories_asked": trajectories,
        "trajectories_extra": trajectories - account.base * len(state.judged),
        "members_left_out": account.left_out,
        "loans": len(account.loans),
        "loan_age_max": max((loan.age for loan in account.loans), default=0),
        "tokens_wasted": account.wasted_tokens,
        "tokens_wasted_fraction": account.wasted_tokens / came if came else 0.0,
    }
    metrics |= _bias(state, account.abandoned)
    return {f"curation/{name}": float(value) for name, value in metrics.items()}


def _bias(state: StepCollection, abandoned: Sequence[GroupOutcome]) -> dict[str, float]:
    """Return by how much the batch prefers short trajectories over those it left behind."""
    leftovers = [*state.surplus, *abandoned]
    bias = length_bias(_lengths(state.batch), _lengths(leftovers))
    if bias is None:
        return {}
    return {
        "tokens_taken_mean": bias.taken_tokens,
        "tokens_left_mean": bias.left_tokens,
        "length_bias": bias.ratio,
    }


def _lengths(groups: Sequence[GroupOutcome]) -> list[int]:
    return [result.tokens for group in groups for result in group.results]


def _tokens(groups: Sequence[GroupOutcome]) -> int:
    return sum(group.tokens for group in groups)
