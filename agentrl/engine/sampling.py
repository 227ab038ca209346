"""Sampling of tokens from logits: the distribution, a draw from it, and its exact log-prob.

Each row is handled by operations that do not mix rows, so a request's tokens and log-probs do not
depend on what else is in the batch. The filters come in the order of transformers' warpers:
temperature, top-k, top-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.policy import Sampling

BLOCK = 64
"""A draw first chooses a block of so many tokens, then a token within it: two short sums instead of
one cumulative sum over the vocabulary."""
LIKELIEST = 512
"""Tokens that top-p looks at first. It sorts the vocabulary only for rows where they do not reach
the share."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One drawn token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens, most likely first; those that could not be drawn are left out."""
    entropy: float = 0.0
    """Entropy of the distribution it was drawn from, in nats; 0 where nobody asked for it."""


def sample(
    logits: Tensor,
    samplings: Sequence[Sampling],
    uniforms: npt.NDArray[np.float64],
    top: Sequence[int],
    *,
    entropies: bool = False,
) -> list[SampledToken]:
    """Draw one token per row of `logits`, float32 of shape (rows, vocabulary).

    Raises `EngineError` when a row is not finite.
    """
    logprobs = distribution(logits, samplings)
    drawn = draw(logprobs, torch.from_numpy(uniforms).to(logits.device))
    token_logprobs = logprobs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).tolist()
    check_logprobs(token_logprobs)
    tokens: list[int] = drawn.tolist()
    tops = most_likely(logprobs, top)
    token_entropies = entropy(logprobs).tolist() if entropies else [0.0] * len(tokens)
    return [
        SampledToken(*row)
        for row in zip(tokens, token_logprobs, tops, token_entropies, strict=True)
    ]


def check_logprobs(logprobs: Sequence[float]) -> None:
    """Raise `EngineError` for a log-prob that is not finite."""
    if not np.isfinite(logprobs).all():
        strange = next(x for x in logprobs if not np.isfinite(x))
        raise EngineError(
            f"the model's logits give log-prob {strange}; the weights loaded last are not finite "
            "or have diverged"
        )


def entropy(logprobs: Tensor) -> Tensor:
    """Return the entropy of each row in nats; what cannot be drawn adds nothing."""
    return torch.special.entr(logprobs.exp()).sum(-1)


def distribution(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return the log-probs of the distribution each row is drawn from, -inf where filtered out.

    Greedy rows become a point: 0 for their token, -inf elsewhere.
    """
    temperatures = [s.temperature or 1.0 for s in samplings]
    if any(t != 1.0 for t in temperatures):
        logits = logits / logits.new_tensor(temperatures).unsqueeze(-1)
    shaped = [row for row, s in enumerate(samplings) if _is_shaped(s, logits.shape[-1])]
    if shaped:
        logits = logits.clone()
        logits[shaped] = filter_logits(logits[shaped], [samplings[row] for row in shaped])
    return torch.log_softmax(logits, -1)


def filter_logits(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return logits (rows, vocabulary) with -inf for tokens that a row's sampling never draws.

    Ties at the k-th token stay. A greedy row keeps its first largest token, at 0.
    """
    logits = _limit_to_top_k(logits, [s.top_k if s.temperature else 0 for s in samplings])
    logits = _limit_to_top_p(logits, [s.top_p if s.temperature else 1.0 for s in samplings])
    greedy = [row for row, s in enumerate(samplings) if s.temperature == 0]
    if greedy:
        rows = logits[greedy]
        best = rows.argmax(-1, keepdim=True)
        largest = rows.gather(-1, best)
        # 0, and NaN where the largest logit is not finite.
        logits[greedy] = torch.full_like(rows, -torch.inf).scatter(-1, best, largest - largest)
    return logits


def _limit_to_top_k(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """Return a copy with the `counts` largest of each row; 0 keeps the row."""
    counts = [count if count < logits.shape[-1] else 0 for count in counts]
    if not any(counts):
        return logits.clone()
    last = torch.tensor([max(0, count - 1) for count in counts], device=logits.device)
    smallest = logits.topk(max(counts)).values.gather(-1, last.unsqueeze(-1))
    unlimited = torch.tensor([count == 0 for count in counts], device=logits.device)
    smallest = smallest.masked_fill(unlimited.unsqueeze(-1), -torch.inf)
    return logits.masked_fill(logits < smallest, -torch.inf)


def _limit_to_top_p(logits: Tensor, shares: Sequence[float]) -> Tensor:
    """Return the logits with the least likely tokens beyond each row's share at -inf, in place.

    Ties with the last token that stays stay.
    """
    limited = [row for row, share in enumerate(shares) if share < 1]
    if not limited:
        return logits
    rows = logits[limited]
    probabilities = rows.softmax(-1)
    row_shares = logits.new_tensor([shares[row] for row in limited]).unsqueeze(-1)
    likeliest = probabilities.topk(min(LIKELIEST, rows.shape[-1])).values
    least, is_enough = _least_likely(likeliest, row_shares)
    if likeliest.shape[-1] < rows.shape[-1] and not is_enough.all():
        flat = ~is_enough.squeeze(-1)
        ordered = probabilities[flat].sort(descending=True).values
        least[flat] = _least_likely(ordered, row_shares[flat])[0]
    logits[limited] = rows.masked_fill(probabilities < least, -torch.inf)
    return logits


def _least_likely(ordered: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest probability that each row's share keeps, and whether the row has more.

    `ordered` is descending. A token stays while the more likely ones have less than the share.
    """
    before = ordered.double().cumsum(-1) - ordered
    count = (before < shares).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(-1, count - 1), count < ordered.shape[-1]


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token at which each row's cumulative probability passes its uniform number."""
    weights = logprobs.exp()
    rows, vocabulary = weights.shape
    if extra := -vocabulary % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, extra))
    blocks = weights.view(rows, -1, BLOCK)
    sums = blocks.sum(-1).double()
    block, rest = _inverse(sums, uniforms * sums.sum(-1))
    inside = blocks[torch.arange(rows, device=weights.device), block].double()
    token, _ = _inverse(inside, rest)
    return block * BLOCK + token


def _inverse(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the item where each row's running sum passes its target, and how far into that item.

    Never an item of weight 0, even when rounding puts the target at the very end.
    """
    sums = weights.cumsum(-1)
    at = (sums <= targets.unsqueeze(-1)).sum(-1)
    last = (sums < sums[:, -1:]).sum(-1)
    at = torch.minimum(at, last)
    picked = at.unsqueeze(-1)
    before = sums.gather(-1, picked) - weights.gather(-1, picked)
    return at, targets - before.squeeze(-1)


def _is_shaped(sampling: Sampling, vocabulary: int) -> bool:
    return sampling.temperature == 0 or sampling.top_p < 1 or 0 < sampling.top_k < vocabulary


def most_likely(logprobs: Tensor, top: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """Return the most likely tokens of each row, `top` of them, without what cannot be drawn."""
    most = max(top)
    if not most:
        return [()] * len(top)
    best = logprobs.topk(most)
    rows = zip(best.indices.tolist(), best.values.tolist(), top, strict=True)
    return [
        tuple((t, p) for t, p in zip(ids[:n], values[:n], strict=True) if p > -torch.inf)
        for ids, values, n in rows
    ]
