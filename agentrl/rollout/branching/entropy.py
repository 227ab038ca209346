"""Uncertainty of the policy, from the few most likely tokens an engine reports.

Entropies are in nats. An engine reports the k most likely tokens; what it leaves out has a known
mass `r` and no token more likely than the k-th, `p`. So the tail's entropy is least when it is
packed into tokens of probability `p`, and greatest when it is spread evenly over the rest of the
vocabulary: `bounds` returns both ends, and the exact entropy lies between them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tail = Literal["middle", "lower", "upper", "dropped"]
"""Estimate of a token's entropy: a point between the bounds, or the reported tokens alone."""
Over = Literal["mean", "sum"]
Unit = Literal["log_vocabulary", "nats"]


@dataclass(frozen=True, slots=True)
class EntropyBounds:
    """Bounds of one token's entropy, in nats."""

    reported: float
    """Entropy of the reported tokens alone, not renormalised, as in ARPO's and AEPO's code."""
    lower: float
    upper: float

    def point(self, tail: Tail) -> float:
        """Return one number for it. The middle is wrong by half the width at most."""
        match tail:
            case "middle":
                return (self.lower + self.upper) / 2
            case "lower":
                return self.lower
            case "upper":
                return self.upper
            case "dropped":
                return self.reported


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyProbe:
    """Uncertainty of the policy over the first tokens of one turn."""

    value: float
    """The signal that rules compare, in the signal's own unit."""
    lower: float
    """Mean entropy per token, in nats, at least."""
    upper: float
    """Mean entropy per token, in nats, at most."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropySignal:
    """Reduction of reported log-probs to the one number that branching compares.

    The defaults take the mean, so that a short turn counts like a long one. `code_signal` is what
    ARPO's and AEPO's code computes.
    """

    vocabulary: int
    tokens: int = 20
    top_k: int = 10
    over: Over = "mean"
    tail: Tail = "middle"
    unit: Unit = "log_vocabulary"
    """`log_vocabulary` divides by the entropy of a uniform choice, `nats` by nothing."""

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise ValueError(
                f"a signal over a vocabulary of {self.vocabulary} tokens carries no information; "
                "give the size of the policy's vocabulary"
            )
        if self.tokens < 1 or self.top_k < 1:
            raise ValueError(
                f"a signal needs at least one token and one log-prob, got tokens={self.tokens} "
                f"and top_k={self.top_k}"
            )

    def measure(self, logprobs: Sequence[Sequence[float]]) -> EntropyProbe | None:
        """Return the signal of a turn's first tokens, given the reported log-probs of each.

        Tokens beyond the signal's own number are left out. None when nothing was reported.
        """
        rows = [row for row in logprobs[: self.tokens] if row]
        if not rows:
            return None
        each = [bounds(row, vocabulary=self.vocabulary, top_k=self.top_k) for row in rows]
        total = sum(one.point(self.tail) for one in each)
        scale = math.log(self.vocabulary) if self.unit == "log_vocabulary" else 1.0
        return EntropyProbe(
            value=total / (scale * (len(each) if self.over == "mean" else 1)),
            lower=sum(one.lower for one in each) / len(each),
            upper=sum(one.upper for one in each) / len(each),
            tokens=len(each),
        )


def code_signal(vocabulary: int) -> EntropySignal:
    """Return the signal of ARPO's and AEPO's code: a sum over the reported tokens alone.

    It is 20 times the mean over 20 tokens: weights and temperatures of rules go with it.
    """
    return EntropySignal(vocabulary=vocabulary, over="sum", tail="dropped")


def bounds(
    logprobs: Sequence[float], *, vocabulary: int, top_k: int | None = None
) -> EntropyBounds:
    """Return the bounds of a token's entropy from the log-probs of its most likely tokens.

    Some engines add the sampled token when it is not among the `top_k` most likely: what comes
    after the first `top_k` is known, and bounds nothing. Raises `ValueError` for log-probs that no
    distribution over `vocabulary` tokens can have.
    """
    if not logprobs or len(logprobs) > vocabulary:
        raise ValueError(
            f"{len(logprobs)} log-probs of a vocabulary of {vocabulary} tokens; pass at least one, "
            "of the most likely tokens"
        )
    probs = [math.exp(x) for x in logprobs]
    mass = math.fsum(probs)
    if not mass <= 1 + _ROUNDING:
        raise ValueError(
            f"the reported log-probs sum to a probability of {mass:g}; pass log-probs of one "
            "distribution, in nats"
        )
    reported = math.fsum(_part(p) for p in probs)
    tail_mass, others = max(0.0, 1 - mass), vocabulary - len(probs)
    if others == 0 or tail_mass <= _ROUNDING:
        return EntropyBounds(reported, reported, reported)
    most = min(probs[:top_k])
    # Rounded log-probs may leave a tail that k-th-likely tokens cannot quite hold.
    most = max(most, tail_mass / others)
    full = min(math.floor(tail_mass / most), others)
    least = full * _part(most) + _part(max(0.0, tail_mass - full * most))
    greatest = tail_mass * math.log(others / tail_mass)
    return EntropyBounds(reported, reported + min(least, greatest), reported + greatest)


_ROUNDING = 1e-5
"""Log-probs come in single precision: so much mass may be missing or too much."""


def _part(probability: float) -> float:
    return -probability * math.log(probability) if probability > 0 else 0.0
