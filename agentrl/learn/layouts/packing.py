"""Packing of sequences into lines that are no longer than a budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int
from numpy import ndarray


@dataclass(frozen=True, slots=True)
class PackingUnit:
    """Neighbouring sequences that stay together, and how many tokens they need."""

    start: int
    stop: int
    tokens: int


def pack(
    lengths: Sequence[int] | Int[ndarray, " sequences"],
    shared: Sequence[int] | Int[ndarray, " sequences"],
    *,
    limit_tokens: int,
) -> list[list[int]]:
    """Return the sequence indices of each line of at most `limit_tokens`.

    `shared` says how many tokens each sequence has in common with the one before it. A tree stays
    whole if it fits, and else falls apart where its branches part. The longest come first; each
    goes into the line that it shares most with, the first of equals, or into a new one.

    What a unit shares with a line is the most that it shares with one of the line's units, so that
    the units alone are compared, all of those that are placed in one operation.
    """
    common = np.asarray(shared, dtype=np.int64)
    units = sorted(
        _find_units(np.asarray(lengths, dtype=np.int64), common, limit_tokens),
        key=lambda unit: unit.start,
    )
    # Within a unit more is shared than at its edges. Across an edge of 0 nothing is.
    edges = common[[unit.start for unit in units]]
    starts = np.flatnonzero(np.concatenate([[True], edges[1:] == 0]))[: len(units)]
    sizes = np.diff(starts, append=len(units))
    first, last = (np.repeat(ends, sizes).tolist() for ends in (starts, starts + sizes))
    line_of = np.full(len(units), -1)
    room = np.full(len(units) + 1, np.iinfo(np.int64).min // 2)
    """What each line has left. The last one stands for none yet: less than any unit needs."""
    lines: list[list[PackingUnit]] = []
    for index in sorted(range(len(units)), key=lambda i: (-units[i].tokens, i)):
        unit, near = units[index], slice(first[index], last[index])
        overlap, near_lines = _find_overlaps(edges[near], index - near.start), line_of[near]
        # What it would save in each line that it fits in, -1 in all others.
        saves = np.where(room[near_lines] + overlap >= unit.tokens, overlap, -1)
        saved = int(saves.max())
        if saved >= 0:
            line = int(near_lines[saves == saved].min())
        else:
            saved = 0
            free = room[: len(lines)] >= unit.tokens
            line = int(free.argmax()) if free.any() else len(lines)
        if line == len(lines):
            lines.append([])
            room[line] = limit_tokens
        lines[line].append(unit)
        line_of[index] = line
        room[line] -= unit.tokens - saved
    return [[i for unit in line for i in range(unit.start, unit.stop)] for line in lines]


def count_places(
    lengths: Int[ndarray, " sequences"],
    shared: Int[ndarray, " sequences"],
    chosen: Int[ndarray, " chosen"],
) -> int:
    """Return the length of one line of the chosen sequences, in rising order of their indices."""
    if len(chosen) < 2:
        return int(lengths[chosen].sum())
    gaps = np.minimum.reduceat(shared[: chosen[-1] + 1], chosen[:-1] + 1)
    return int(lengths[chosen].sum() - gaps.sum())


def _find_units(
    lengths: Int[ndarray, " sequences"], shared: Int[ndarray, " sequences"], limit_tokens: int
) -> Iterator[PackingUnit]:
    """Yield the largest subtrees that fit. A single sequence is always one of them."""
    added = np.concatenate([[0], np.cumsum(lengths - shared)])
    waiting = [(0, len(lengths))] if len(lengths) else []
    while waiting:
        start, stop = waiting.pop()
        tokens = int(lengths[start] + added[stop] - added[start + 1])
        if tokens <= limit_tokens or stop - start == 1:
            yield PackingUnit(start, stop, tokens)
            continue
        inner = shared[start + 1 : stop]
        cuts = np.flatnonzero(inner == inner.min()) + start + 1
        waiting += pairwise([start, *cuts.tolist(), stop])


def _find_overlaps(edges: Int[ndarray, " units"], index: int) -> Int[ndarray, " units"]:
    """Return the tokens that a unit shares with each other one: the least edge between them."""
    overlaps = np.zeros_like(edges)
    np.minimum.accumulate(edges[index:0:-1], out=overlaps[:index][::-1])
    np.minimum.accumulate(edges[index + 1 :], out=overlaps[index + 1 :])
    return overlaps
