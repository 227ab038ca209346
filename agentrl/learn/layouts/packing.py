"""Packing of sequences into lines that are no longer than a budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PackingUnit:
    """Neighbouring sequences that stay together, and how many tokens they need."""

    start: int
    stop: int
    tokens: int


def pack(lengths: Sequence[int], shared: Sequence[int], *, limit_tokens: int) -> list[list[int]]:
    """Return the sequence indices of each line of at most `limit_tokens`.

    `shared` says how many tokens each sequence has in common with the one before it. A tree stays
    whole if it fits, and else falls apart where its branches part. The longest come first; each
    goes into the line that it shares most with, the first of equals, or into a new one.
    """
    lines: list[list[PackingUnit]] = []
    line_tokens: list[int] = []
    units = sorted(_units(lengths, shared, limit_tokens), key=lambda u: (-u.tokens, u.start))
    for unit in units:
        saved = [max(_overlap(unit, other, shared) for other in line) for line in lines]
        fits = [i for i, n in enumerate(line_tokens) if n + unit.tokens - saved[i] <= limit_tokens]
        if fits:
            index = max(fits, key=lambda i: (saved[i], -i))
            lines[index].append(unit)
            line_tokens[index] += unit.tokens - saved[index]
        else:
            lines.append([unit])
            line_tokens.append(unit.tokens)
    return [[i for unit in line for i in range(unit.start, unit.stop)] for line in lines]


def _units(
    lengths: Sequence[int], shared: Sequence[int], limit_tokens: int
) -> Iterator[PackingUnit]:
    """Yield the largest subtrees that fit. A single sequence is always one of them."""
    waiting = [(0, len(lengths))] if lengths else []
    while waiting:
        start, stop = waiting.pop()
        tokens = lengths[start] + sum(lengths[i] - shared[i] for i in range(start + 1, stop))
        if tokens <= limit_tokens or stop - start == 1:
            yield PackingUnit(start, stop, tokens)
            continue
        fork = min(shared[start + 1 : stop])
        cuts = [start, *(i for i in range(start + 1, stop) if shared[i] == fork), stop]
        waiting += pairwise(cuts)


def _overlap(one: PackingUnit, other: PackingUnit, shared: Sequence[int]) -> int:
    first, second = sorted((one, other), key=lambda unit: unit.start)
    return min(shared[first.stop : second.start + 1])
