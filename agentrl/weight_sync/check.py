"""Weights that say what they compute, so that who takes them can be asked whether it has them.

    trainer    scores fixed tokens with the weights it sends         `WeightCheck`, `CheckedWeights`
    engine     takes the weights, and scores the same tokens         `complaint`: None if they agree
    owner      keeps them, goes back to the last good ones, or       `next_move`
               replaces the engine

A proof finds weights that are missing, mixed up, of another model, not finite, or not there at all.
Whether it finds those of one step ago is a matter of `max_gap` and of how far one step goes.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from agentrl.policy import ScoreRequest, Scores

TRIES = 2
"""Number of times an engine is given weights before it is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCheck:
    """Trainer's log-probs of fixed tokens."""

    token_ids: tuple[int, ...]
    """Token ids, at least two; the first one is given."""
    logprobs: tuple[float, ...]
    """Log-probs of every token but the first, in nats, at temperature 1."""
    max_gap: float
    """Largest gap that an engine may have to any of them, in nats."""
    deadline_s: float
    """Deadline for the weights to be loaded, and again for the tokens to be scored."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs) + 1 or not self.logprobs:
            raise ValueError(
                f"a weight check has {len(self.token_ids)} tokens and {len(self.logprobs)} "
                "log-probs; it needs one log-prob for each token except the first"
            )

    def request(self, id: str) -> ScoreRequest:
        """Return the score request that an engine is asked."""
        return ScoreRequest(id=id, prompt=self.token_ids[:1], token_ids=self.token_ids[1:])


class CheckedWeights(Mapping[str, Tensor]):
    """A state dict with its proof."""

    def __init__(self, weights: Mapping[str, Tensor], proof: WeightCheck) -> None:
        self.weights = weights
        self.proof = proof

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def complaint(proof: WeightCheck, scores: Scores, *, version: int) -> str | None:
    """Return the fault in the scores of an engine that was given weights; None if there is none."""
    if scores.version != version:
        return f"it scores with version {scores.version} after it was given version {version}"
    if len(scores.logprobs) != len(proof.logprobs):
        return f"it scored {len(scores.logprobs)} of {len(proof.logprobs)} tokens"
    gaps = [abs(a - b) for a, b in zip(scores.logprobs, proof.logprobs, strict=True)]
    for place, gap in enumerate(gaps):
        # Written so that a gap which is no number is one.
        if not gap <= proof.max_gap:
            ours, theirs = proof.logprobs[place], scores.logprobs[place]
            worst = max(gaps) if all(map(math.isfinite, gaps)) else math.inf
            return (
                f"it gives token {place + 1} of the probe a log-prob of {theirs:.4g}, but the "
                f"trainer gives {ours:.4g}; the largest gap is {worst:.3g} nats, and at most "
                f"{proof.max_gap:g} is allowed (engine.probe.max_gap)"
            )
    return None


Verdict = Literal["proven", "wrong", "broken"]
"""Verdict of one try. `broken` is an engine that failed, or missed a deadline, in loading or in
scoring."""
Move = Literal["keep", "try again", "replace"]


def next_move(verdict: Verdict, *, tries: int) -> Move:
    """Return the next move after so many tries with one engine.

    Before another try it goes back to the last good weights. One that is broken may never answer
    again, so that nothing more is asked of it.
    """
    if verdict == "proven":
        return "keep"
    return "try again" if verdict == "wrong" and tries < TRIES else "replace"
