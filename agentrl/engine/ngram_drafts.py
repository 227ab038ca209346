"""Drafts of a request's next tokens: what followed the same tokens before, here or in another one.

The engine computes a draft in one pass with the last sampled token and samples every place with
that place's own noise. It keeps the samples up to the first that is not the drafted token. A draft
changes the number of steps of a turn and no token of it; a drafted token is accepted with its
probability, as often as rejection sampling accepts a draft that is one certain token.

The table outlives its requests. The second time a task is played, and beside a request's siblings,
it knows how the text went on. An entry that is wrong, or of another text, costs time and no more.
"""

import math
from collections.abc import Sequence

LENGTHS = (16, 4)
"""Lengths of n-grams, longest first: the long one finds the same conversation again."""
CAPACITY = 1 << 19
"""N-grams of a table; as many older ones are kept beside them."""
LEAST_CHANCE = 0.6
"""A token is drafted where the chance that it is kept is at least this. That is what a further row
costs in a full batch, relative to a row there (measured)."""
FIRST_RATE = 0.5
RATE_STEP, SHARED_RATE_STEP = 0.1, 0.01


def draft_length(rate: float, limit: int) -> int:
    """Return the number of tokens to draft, each right with chance `rate`."""
    if rate <= 0:
        return 0
    return limit if rate >= 1 else min(limit, int(math.log(LEAST_CHANCE) / math.log(rate)))


class NgramDrafts:
    """Table of the token that followed each n-gram last. Owned by one engine."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._recent: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self.rate = FIRST_RATE
        """Share of the latest guesses of all requests that were right, a moving average."""

    def learn(self, tokens: Sequence[int], start: int, end: int) -> None:
        """Note the n-grams that the tokens from `start` up to `end` followed."""
        for at in range(start, end):
            for length in LENGTHS:
                if at >= length:
                    self._recent[hash(tuple(tokens[at - length : at]))] = tokens[at]
        if len(self._recent) > self._capacity:
            self._older, self._recent = self._recent, {}

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return a guess of the next tokens, at most `count`; it ends at an unknown n-gram."""
        tail = list(tokens[-LENGTHS[0] :])
        guesses: list[int] = []
        while len(guesses) < count:
            token = self._find(tail)
            # A negative token stands for an image and is never sampled.
            if token is None or token < 0:
                break
            guesses.append(token)
            tail = [*tail, token][-LENGTHS[0] :]
        return guesses

    def _find(self, tail: Sequence[int]) -> int | None:
        for length in LENGTHS:
            if len(tail) >= length:
                key = hash(tuple(tail[-length:]))
                token = self._recent.get(key, self._older.get(key))
                if token is not None:
                    return token
        return None
