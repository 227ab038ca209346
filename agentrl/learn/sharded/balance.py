"""Distribution of sequences over ranks, so that all of them wait as little as possible."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.learn.sequence_layout import MeasuredSequences, SequenceLayout, TokenSequence

PROBES = 8
"""Number of limits tried below the configured one; each halves the range."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Passes of all ranks. Pass k of every rank runs at the same time: in each layer they wait for
    each other's weights."""

    passes: tuple[tuple[tuple[int, ...], ...], ...]
    """Indices of sequences by rank and pass; empty where a rank only takes part."""
    tokens: int
    """Cost of the split: the sum over passes of the tokens of the slowest rank."""


def rounds(costs: Sequence[int], *, ranks: int) -> tuple[tuple[int | None, ...], ...]:
    """Return for each round which pass each rank computes, None for none.

    A round takes as long as its longest pass. Sorted by falling cost and cut into rounds the sum
    over rounds is the least there is: the k-th longest round begins at best with the
    (k x ranks)-th longest pass. Within a round the longest pass goes to the rank with the least
    work so far.
    """
    if ranks < 1:
        raise ValueError(f"cannot balance over {ranks} ranks; there must be at least one")
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    loads = [0] * ranks
    schedule: list[tuple[int | None, ...]] = []
    for start in range(0, len(order), ranks):
        assignment: list[int | None] = [None] * ranks
        free = sorted(range(ranks), key=lambda rank: (loads[rank], rank))
        for rank, index in zip(free, order[start : start + ranks], strict=False):
            assignment[rank] = index
            loads[rank] += costs[index]
        schedule.append(tuple(assignment))
    return tuple(schedule)


def split(layout: SequenceLayout, sequences: Sequence[TokenSequence], *, ranks: int) -> PassPlan:
    """Split the sequences between ranks: whole ones, in passes of at most the layout's limit.

    The layout's own plan fills passes up to its limit, which may leave ranks without any. So the
    least limit is looked for that takes no more rounds, and of what was tried the cheapest wins.
    """
    measured = layout.measure(sequences)
    best = _split(measured, layout.limit_tokens, ranks=ranks)
    # Passes of one sequence each stay what they are below any limit that leaves it whole.
    if max((len(indices) for part in best.passes for indices in part), default=0) < 2:
        return best
    fewest = len(best.passes[0])
    low = max(measured.places([i]) for i in range(len(sequences)))
    high = layout.limit_tokens
    for _ in range(PROBES):
        if low >= high:
            break
        middle = (low + high) // 2
        tried = _split(measured, middle, ranks=ranks)
        if len(tried.passes[0]) <= fewest and tried.tokens < best.tokens:
            best = tried
        if len(tried.passes[0]) <= fewest:
            high = middle
        else:
            low = middle + 1
    return best


def _split(measured: MeasuredSequences, limit_tokens: int, *, ranks: int) -> PassPlan:
    plan = measured.plan(limit_tokens)
    costs = [measured.places(indices) for indices in plan]
    table = rounds(costs, ranks=ranks)
    return PassPlan(
        passes=tuple(
            tuple(() if i is None else tuple(plan[i]) for i in column)
            for column in zip(*table, strict=True)
        )
        or ((),) * ranks,
        tokens=sum(max(costs[i] for i in row if i is not None) for row in table),
    )
