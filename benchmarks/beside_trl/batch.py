"""The batch on which both contenders must agree: conversations of random tokens, with rewards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUPS, GROUP_SIZE = 4, 4
PROMPT_TOKENS = (20, 60)
TURN_TOKENS = (3, 20)
MOST_TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One completion: what the policy said, and what a tool answered in between."""

    prompt: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    """The policy's and the tool's in turns; the policy's are first and last."""
    reward: float
    advantage: float = 0.0

    @property
    def completion(self) -> tuple[int, ...]:
        """Return everything after the prompt."""
        return tuple(token for part in self.parts for token in part)

    @property
    def mask(self) -> tuple[int, ...]:
        """Return 1 where the policy spoke, one number per token of the completion."""
        return tuple(1 - i % 2 for i, part in enumerate(self.parts) for _ in part)


def drawn_batch(vocabulary: int, *, seed: int = 0) -> list[list[Said]]:
    """Return groups of completions of unequal lengths and turns, each group with one prompt."""
    random = np.random.default_rng(seed)

    def tokens(between: tuple[int, int]) -> tuple[int, ...]:
        return tuple(random.integers(0, vocabulary, int(random.integers(*between))).tolist())

    groups: list[list[Said]] = []
    for _ in range(GROUPS):
        prompt = tokens(PROMPT_TOKENS)
        groups.append([])
        for _ in range(GROUP_SIZE):
            parts = tuple(
                tokens(TURN_TOKENS) for _ in range(2 * random.integers(1, MOST_TURNS) - 1)
            )
            groups[-1].append(Said(prompt=prompt, parts=parts, reward=float(random.random())))
    return groups


def relative_error(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the norm of the difference over the norm of `theirs`, of all arrays together."""
    pairs = list(zip(ours, theirs, strict=True))
    apart = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in pairs)
    whole = sum(float((b.astype(np.float64) ** 2).sum()) for _, b in pairs)
    if whole == 0:
        return 0.0 if apart == 0 else math.inf
    return (apart / whole) ** 0.5
