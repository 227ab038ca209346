"""The language-model head by chunks: log-probs and entropies without the logits of all predictions.

Logits are the largest block of a training step: predictions x vocabulary, several times over. Here
they exist for a chunk of predictions at a time; the backward pass computes them again.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

HEAD_CHUNK_TOKENS = 1024
"""Default of `learn.head_chunk_tokens`."""

PLAIN_LOGITS = 2**24
"""Up to so many logits (64 MiB in float32) the plain head is used: it is up to a third faster,
because nothing is computed twice."""

FLOOR = -1e4
"""Log-probs are raised to this before they are multiplied with probabilities; e^-10000 is 0."""


class TokenPredictions(NamedTuple):
    """Outputs of the head for each prediction, in nats and float32, with gradient."""

    logprobs: Float[Tensor, " chosen"]
    entropies: Float[Tensor, " chosen"]
    """Entropies over the whole vocabulary."""


def predict(
    head: nn.Module,
    hidden: Float[Tensor, "chosen width"],
    targets: Int[Tensor, " chosen"],
    *,
    temperature: float,
    chunk_tokens: int,
) -> TokenPredictions:
    """Return the targets' log-probs and the entropies under `softmax(head(hidden) / temperature)`.

    No more than `chunk_tokens` x vocabulary logits exist at once, or `PLAIN_LOGITS` where that is
    more. Values are those of the plain head; so are gradients, up to the order of their sums.
    """
    size = _outputs(head)
    if len(hidden) <= max(chunk_tokens, PLAIN_LOGITS // size):
        return plain(head(hidden), targets, temperature=temperature)
    if type(head) is nn.Linear:
        outputs = _Chunked.apply(hidden, head.weight, head.bias, targets, temperature, chunk_tokens)
        return TokenPredictions(*outputs)
    pairs = zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    parts = [_predict_checkpointed(head, *pair, temperature) for pair in pairs]
    logprobs, entropies = zip(*parts, strict=True)
    return TokenPredictions(torch.cat(logprobs), torch.cat(entropies))


def plain(
    logits: Float[Tensor, "chosen vocabulary"],
    targets: Int[Tensor, " chosen"],
    *,
    temperature: float,
) -> TokenPredictions:
    """Return the same from logits that are there anyway."""
    logs = (logits.float() / temperature).log_softmax(dim=-1)
    return TokenPredictions(_gather_targets(logs, targets), _entropies(logs))


def _entropies(logs: Float[Tensor, "chosen vocabulary"]) -> Float[Tensor, " chosen"]:
    # Without the floor 0 x -inf would be no number, in the gradient neither.
    return -(logs.exp() * logs.clamp(min=FLOOR)).sum(dim=-1)


def _outputs(head: nn.Module) -> int:
    weight: Any = getattr(head, "weight", None)
    return len(weight) if isinstance(weight, Tensor) else 2**31


def _gather_targets(logs: Tensor, targets: Tensor) -> Tensor:
    return logs.gather(-1, targets[:, None])[:, 0]


def _predict_checkpointed(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float
) -> TokenPredictions:
    """Return the results of `plain` for a head that is no bare matrix, such as an adapted one."""
    call = partial(plain, targets=targets, temperature=temperature)
    return checkpoint(lambda: call(head(hidden)), use_reentrant=False)  # pyright: ignore[reportReturnType]


class _Chunked(torch.autograd.Function):
    """Log-probs and entropies of a linear head, chunk by chunk.

    With z the logits over the temperature, p = softmax(z) and H its entropy:
    d log p_y / dz = 1_y - p and dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropies = torch.empty_like(logprobs)
        for part in _parts(len(hidden), chunk_tokens):
            logs = _logs(hidden[part], weight, bias, temperature)
            logprobs[part] = _gather_targets(logs, targets[part])
            probabilities = logs.exp()
            entropies[part] = -logs.clamp_(min=FLOOR).mul_(probabilities).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight, of_bias = (
            # In float32: a sum over chunks would lose what a single product keeps.
            torch.zeros_like(x, dtype=torch.float32) if needed else None
            for x, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        )
        for part in _parts(len(hidden), ctx.chunk_tokens):
            logs = _logs(hidden[part], weight, bias, ctx.temperature)
            of_logits = _compute_logit_gradient(
                logs, targets[part], entropies[part], *(g if g is None else g[part] for g in grads)
            )
            of_logits = of_logits.div_(ctx.temperature).to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[part] = of_logits @ weight
            if of_weight is not None:
                of_weight += of_logits.T @ hidden[part]
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return (
            of_hidden,
            of_weight if of_weight is None else of_weight.to(weight.dtype),
            of_bias if of_bias is None else of_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _compute_logit_gradient(
    logs: Float[Tensor, "chunk vocabulary"],
    targets: Int[Tensor, " chunk"],
    entropies: Float[Tensor, " chunk"],
    of_logprobs: Float[Tensor, " chunk"] | None,
    of_entropies: Float[Tensor, " chunk"] | None,
) -> Float[Tensor, "chunk vocabulary"]:
    """Return the gradient at the logits over the temperature; changes `logs`."""
    probabilities = logs.exp()
    if of_logprobs is None:
        of_logprobs = torch.zeros_like(entropies)
    if of_entropies is None:
        gradient = probabilities.mul_(-of_logprobs[:, None])
    else:
        logs.clamp_(min=FLOOR).add_(entropies[:, None]).mul_(of_entropies[:, None])
        gradient = logs.add_(of_logprobs[:, None]).mul_(probabilities).neg_()
    return gradient.scatter_add_(1, targets[:, None], of_logprobs[:, None])


def _logs(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = linear(hidden, weight, bias).float()
    return logits.div_(temperature).log_softmax(dim=-1)


def _parts(length: int, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, length, chunk))
