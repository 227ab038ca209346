"""Accepted tokens of a draft: pure. Source: SPEC-RL (Liu et al. 2025, arXiv 2509.23232).

Log-probs are in nats, of the sampling distribution: `drafted` under the policy that wrote a token,
`current` under the one that judges it. Uniform numbers are within (0, 1]. What is exact, and what
is not, stands at `AcceptanceRule`; the coarse residual is explained at `settlement`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

Alternatives = Sequence[tuple[int, float]]
"""`(token id, log-prob)` of the likeliest tokens of the drafting policy at one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRule:
    """A token stands with probability `min(1, (leniency * p / q) ** scale)`, if `p >= floor`.

    With leniency 1 this is speculative sampling's test. What follows a rejection then decides what
    is sampled: with a fresh draw from p the result leans towards q, the more the more lenient the
    test is; with a draw from what is left of p it is exactly p (`is_exact`).
    """

    leniency: float = math.exp(0.5)
    """l: 1 is the plain test, 0 keeps nothing, infinity everything that can be drawn."""
    scale: float = 1.0
    """Scale of the exponent; more than 1 judges harder."""
    floor: float = 0.0
    """A token that is now less likely than this never stands."""

    def __post_init__(self) -> None:
        if not self.leniency >= 0:
            raise ValueError(f"leniency must be at least 0, got {self.leniency}")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be finite and greater than 0, got {self.scale}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be within [0, 1], got {self.floor}")

    @property
    def is_exact(self) -> bool:
        """Return whether no token stands more often than p / q, so that a residual exists."""
        return self.leniency <= 1 and self.scale >= 1

    def chance(self, current: float, drafted: float) -> float:
        """Return the probability with which a token stands.

        A token whose drafted log-prob is not finite, or that cannot be drawn any more, never does.
        """
        if not math.isfinite(drafted) or not current > -math.inf or self.leniency == 0:
            return 0.0
        if math.exp(current) < self.floor:
            return 0.0
        exponent = self.scale * (current - drafted + math.log(self.leniency))
        return 1.0 if exponent >= 0 else math.exp(exponent)


def cut(
    rule: AcceptanceRule,
    current: Sequence[float],
    drafted: Sequence[float],
    uniforms: Sequence[float],
) -> int:
    """Return the number of accepted tokens before the first rejected one.

    Raises `ValueError` for sequences of different lengths.
    """
    for at, (p, q, u) in enumerate(zip(current, drafted, uniforms, strict=True)):
        if u > rule.chance(p, q):
            return at
    return len(current)


@dataclass(frozen=True, slots=True)
class DraftSettlement:
    """Sampling weights at one place of a draft, given the token that was drafted there."""

    chance: float
    """Probability with which the drafted class of tokens stands."""
    stands: ndarray
    """Weights by token id when it does; they need not sum to 1."""
    residual: ndarray
    """Weights by token id when it does not."""

    def draw(self, u: float, v: float) -> int:
        """Return the token: `u` judges the draft, `v` chooses."""
        weights = self.stands if u <= self.chance or not self.residual.any() else self.residual
        sums = np.cumsum(weights)
        at = int(np.searchsorted(sums, v * sums[-1]))
        # Rounding may put the target behind the last token that has a weight.
        return min(at, int(np.flatnonzero(weights)[-1]))


def settlement(
    rule: AcceptanceRule, token: int, alternatives: Alternatives, current: Sequence[float]
) -> DraftSettlement:
    """Return the sampling weights at a place that make the result exactly `current`.

    `current` are the log-probs of the whole vocabulary. Of the drafting policy only the likeliest
    tokens are known, so all others are one class: if the draft is among them the class is judged
    as a whole, and a token of it is drawn anew from `current`. On a rejection, what is left of each
    class, `p - q * chance`, is drawn from. Averaged over the draft this is p whatever is known of
    q; knowing more only lets more tokens stand. Raises `ValueError` for a rule that is not exact.
    """
    if not rule.is_exact:
        raise ValueError(
            f"leniency {rule.leniency} and scale {rule.scale} accept tokens more often than p / q, "
            "which leaves no residual distribution; use a leniency of at most 1 and a scale of at "
            "least 1"
        )
    p = np.exp(np.asarray(current, dtype=np.float64))
    p /= p.sum()
    top_ids = np.array([t for t, _ in alternatives], dtype=np.int64)
    q = np.exp(np.array([x for _, x in alternatives], dtype=np.float64))
    q_rest = max(0.0, 1.0 - float(q.sum()))
    rest = p.copy()
    rest[top_ids] = 0.0
    p_rest = float(rest.sum())
    chances = np.array([rule.chance(_log(p[t]), x) for t, x in alternatives], dtype=np.float64)
    rest_chance = rule.chance(_log(p_rest), _log(q_rest)) if q_rest > 0 else 0.0
    residual = np.zeros_like(p)
    residual[top_ids] = np.maximum(0.0, p[top_ids] - q * chances)
    if p_rest > 0:
        residual += rest * (max(0.0, p_rest - q_rest * rest_chance) / p_rest)
    (place,) = np.nonzero(top_ids == token)
    if place.size:
        point = np.zeros_like(p)
        point[token] = 1.0
        return DraftSettlement(float(chances[place[0]]), point, residual)
    return DraftSettlement(rest_chance, rest if p_rest > 0 else p, residual)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
