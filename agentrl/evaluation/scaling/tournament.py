"""Recursive tournament voting (RTV, arXiv 2604.16529): groups vote, and winners meet again."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

Vote = Callable[[tuple[int, ...], int], Awaitable[int | None]]
"""Asks a judge once: the contenders in the order they are shown, and a seed. Returns the place of
the best in that order, counted from 0; None where the judge's answer names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentVote:
    """One group of contenders, and how the judge voted."""

    round: int
    contenders: tuple[int, ...]
    votes: tuple[int, ...]
    """The contender each valid vote was for."""
    winner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentResult:
    """Result of a tournament."""

    survivors: tuple[int, ...]
    comparisons: tuple[TournamentVote, ...]


def groups_of(
    contenders: Sequence[int], *, size: int, keep: int
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Return the groups of one round, and who goes on without one.

    No more are put into groups than have to leave, so that exactly `keep` are left in the end; an
    odd one out goes on.
    """
    leave = len(contenders) - keep
    groups: list[tuple[int, ...]] = []
    at = 0
    while leave > 0 and len(contenders) - at >= 2:
        group = tuple(contenders[at : at + min(size, leave + 1)])
        groups.append(group)
        leave -= len(group) - 1
        at += len(group)
    return groups, tuple(contenders[at:])


def rotate_group(group: tuple[int, ...], vote: int) -> tuple[int, ...]:
    """Return the order a group is shown in for one of its votes: every vote moves it by one."""
    turn = vote % len(group)
    return (*group[turn:], *group[:turn])


def choose_winner(votes: Sequence[int], group: Sequence[int]) -> int:
    """Return the contender with most votes: of equals the first voted for, else the first."""
    return Counter(votes).most_common(1)[0][0] if votes else group[0]


async def tournament(
    contenders: Sequence[int],
    vote: Vote,
    *,
    size: int = 2,
    votes: int = 8,
    keep: int = 1,
    seed: int = 0,
    has_result: Callable[[int], bool] = lambda contender: True,
) -> TournamentResult:
    """Return the `keep` that win. Contenders without a result lose without a vote, and win only
    where there are too few others.

    Groups are drawn with `seed`. Each is shown `votes` times, every time in another order, so that
    a judge with a taste for a place cancels out.
    """
    rng = Random(seed)
    survivors = sorted(contenders, key=has_result, reverse=True)
    survivors = survivors[: max(keep, 1, sum(map(has_result, survivors)))]
    comparisons: list[TournamentVote] = []
    number = 0
    while len(survivors) > max(keep, 1):
        rng.shuffle(survivors)
        groups, byes = groups_of(survivors, size=size, keep=max(keep, 1))
        winners: list[int] = []
        for group in groups:
            live = tuple(one for one in group if has_result(one)) or group[:1]
            cast: list[int] = []
            seeds = [rng.randrange(2**31) for _ in range(votes)]
            for ballot in range(votes if len(live) > 1 else 0):
                order = rotate_group(live, ballot)
                choice = await vote(order, seeds[ballot])
                if choice is not None and 0 <= choice < len(order):
                    cast.append(order[choice])
            winners.append(choose_winner(cast, live))
            comparisons.append(
                TournamentVote(
                    round=number, contenders=group, votes=tuple(cast), winner=winners[-1]
                )
            )
        survivors = [*winners, *byes]
        number += 1
    return TournamentResult(survivors=tuple(survivors), comparisons=tuple(comparisons))
