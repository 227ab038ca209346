"""Choice of the groups on a page: all or evenly chosen ones, and a note on the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.store.reader import GroupIndexRow


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps to show, both ends among them; None is open."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> "StepRange":
        """Parse `A:B`, `A:`, `:B` or `A`; return all steps for None. Raises `ConfigError`."""
        if text is None:
            return cls()
        first, colon, last = text.partition(":")
        try:
            low = int(first) if first else None
            high = int(last) if last else None
        except ValueError:
            low = high = -1
        if not text.strip(":") or (low or 0) < 0 or (high or 0) < 0:
            raise ConfigError(f"--step is {text!r}, expected steps such as 3:8, 3:, :8 or 3")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"--step is {text!r}, but {low} comes after {high}; swap them")
        return cls(low, high if colon else low)

    def __contains__(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (
            self.last is None or step <= self.last
        )


def choose_groups(
    groups: Sequence[GroupIndexRow], *, steps: StepRange, limit: int
) -> tuple[list[GroupIndexRow], list[str]]:
    """Return the groups to show, at most `limit` trajectories, and what was left out, in words.

    Where they are too many, groups are taken at even distances, the first and the last among them.
    """
    pool = [group for group in groups if group.step in steps]
    omissions: list[str] = []
    if len(pool) < len(groups):
        omissions.append(f"{len(groups) - len(pool):,} groups of other steps (--step)")
    total = sum(group.size for group in pool)
    if total <= limit or len(pool) <= 1:
        return pool, omissions
    count = max(1, limit * len(pool) // total)
    picks = _even(pool, count)
    while len(picks) > 1 and sum(group.size for group in picks) > limit:
        picks = _even(pool, len(picks) - 1)
    surplus = total - sum(group.size for group in picks)
    omissions.append(
        f"{len(pool) - len(picks):,} of {len(pool):,} groups, {surplus:,} trajectories, sampled "
        f"evenly (--limit {limit})"
    )
    return picks, omissions


def _even(groups: Sequence[GroupIndexRow], count: int) -> list[GroupIndexRow]:
    if count == 1:
        return [groups[-1]]
    last = len(groups) - 1
    return [groups[round(at * last / (count - 1))] for at in range(count)]
