"""Budget of one task's tree: its leaves and tokens, and those that are left."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchBudget:
    """Limits of one task's tree: leaves, tokens, retries and branch points."""

    leaves: int
    """Trajectories, failed for good among them: exactly so many end, tokens allowing."""
    tokens: int | None = None
    """Tokens of all trajectories, shared ones once. When they are used up nothing more begins, and
    what runs goes on to its end: the tree may have fewer leaves and a few more tokens."""
    retries: int = 2
    """Retries of a failed leaf; behind a scheduler its own number counts, and it retries whatever
    tokens are left."""
    path_branches: int | None = None

    def __post_init__(self) -> None:
        if self.leaves < 1:
            raise ValueError(f"a task needs at least one leaf, got {self.leaves}")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(
                f"a budget of {self.tokens} tokens allows no trajectory; use None for no limit"
            )
        if self.retries < 0 or (self.path_branches is not None and self.path_branches < 0):
            raise ValueError(
                f"retries and path_branches must be at least 0, got {self.retries} and "
                f"{self.path_branches}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLedger:
    """The samples of a task: free, live or ended, every one exactly one of the three."""

    budget: BranchBudget
    free: tuple[int, ...]
    live: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    tries: tuple[int, ...] = ()
    """Failures that were begun again, by sample."""
    tokens: int = 0

    @classmethod
    def from_budget(cls, budget: BranchBudget) -> "BudgetLedger":
        """Return a ledger of which nothing is used."""
        return cls(budget=budget, free=tuple(range(budget.leaves)), tries=(0,) * budget.leaves)

    @property
    def spent(self) -> bool:
        """True when the tokens are used up."""
        return self.budget.tokens is not None and self.tokens >= self.budget.tokens

    @property
    def open(self) -> int:
        """Number of trajectories that may begin now."""
        return 0 if self.spent else len(self.free)

    def take(self, count: int) -> tuple["BudgetLedger", tuple[int, ...]]:
        """Return the lowest free samples, at most `count`, now live."""
        samples = self.free[: max(0, min(count, self.open))]
        return replace(self, free=self.free[len(samples) :], live=(*self.live, *samples)), samples

    def give_back(self, sample: int) -> "BudgetLedger":
        """Return a ledger on which a live sample is free again."""
        return replace(
            self, live=_remove_sample(self.live, sample), free=tuple(sorted((*self.free, sample)))
        )

    def end(self, sample: int) -> "BudgetLedger":
        """Return a ledger on which a live sample has ended for good."""
        return replace(self, live=_remove_sample(self.live, sample), ended=(*self.ended, sample))

    def reopen(self, sample: int) -> "BudgetLedger":
        """Return a ledger on which an ended sample is live again."""
        return replace(
            self, live=(*self.live, sample), ended=_remove_sample(self.ended, sample, are="ended")
        )

    def may_retry(self, sample: int) -> bool:
        """Return whether a failed sample is begun again."""
        return self.tries[sample] < self.budget.retries and not self.spent

    def count_retry(self, sample: int) -> "BudgetLedger":
        """Return a ledger that has counted one more failure of a sample."""
        tries = (*self.tries[:sample], self.tries[sample] + 1, *self.tries[sample + 1 :])
        return replace(self, tries=tries)

    def add_tokens(self, tokens: int) -> "BudgetLedger":
        """Return a ledger with so many more tokens used."""
        return replace(self, tokens=self.tokens + tokens)


def _remove_sample(samples: tuple[int, ...], sample: int, *, are: str = "live") -> tuple[int, ...]:
    if sample not in samples:
        raise ValueError(f"sample {sample} is not {are}; {are} are {samples}")
    return tuple(other for other in samples if other != sample)
