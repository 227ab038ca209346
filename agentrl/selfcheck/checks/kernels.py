"""Layouts and head on a device, against float32 on the CPU by another way."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from agentrl.learn import head
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.sequence_layout import MaskedTokens, SequenceLayout
from agentrl.learn.token_logprobs import score
from agentrl.models.folders import load_model
from agentrl.selfcheck.checks.policies import draw_tokens, list_dtypes, write_policy
from agentrl.selfcheck.context import CheckContext

LIMITS = {
    "float32": {"max_nats": 1e-3, "mean_nats": 1e-4, "gradient": 1e-3},
    "bfloat16": {"max_nats": 0.5, "mean_nats": 0.05, "gradient": 0.08},
}
"""Largest differences by type: of a log-prob, of log-probs on average, and of the whole gradient
relative to its norm. Attention to other sequences is several times as far in each of them."""
HEAD_LIMITS = {
    "float32": {"logprobs": 1e-4, "entropies": 1e-4, "gradient": 1e-4},
    "bfloat16": {"logprobs": 0.05, "entropies": 0.05, "gradient": 0.02},
}
MICRO_BATCH_TOKENS = {"": 4096, "short.": 700}
"""By the prefix of its figures: a line that a GPU reads with FlexAttention, and lines that are
too short for it."""
PROMPT_TOKENS = 150
ANSWERS = (1, 37, 64, 130, 201)
"""Lengths after a common prefix; none is a multiple of a kernel's block."""
VOCABULARY = 2**16
ROWS = 300


def build_sequences() -> list[MaskedTokens]:
    """Return trajectories of two prompts, some of them with a turn in common too."""
    sequences: list[MaskedTokens] = []
    for prompt in range(2):
        start = draw_tokens(PROMPT_TOKENS + 13 * prompt, seed=prompt)
        turn = draw_tokens(50, seed=10 + prompt)
        for number, count in enumerate(ANSWERS):
            answer = draw_tokens(count, seed=100 * prompt + number + 20)
            parts = (start, turn, answer) if number % 2 else (start, answer)
            tokens = np.concatenate(parts)
            sequences.append(MaskedTokens(tokens, np.arange(len(tokens)) >= len(start)))
    return sequences


def check_layouts(context: CheckContext) -> None:
    """Compare log-probs and gradients of every layout with those of single sequences."""
    folder = write_policy(context.folder / "policy")
    sequences = build_sequences()
    reference = load_model(folder, dtype="float32", device="cpu")
    with sdpa_kernel(SDPBackend.MATH):
        expected = _score_alone(reference, sequences)
    for dtype in list_dtypes(context.device):
        model = load_model(folder, dtype=dtype, device=context.device)
        for (prefix, tokens), (name, layout) in product(
            MICRO_BATCH_TOKENS.items(), LAYOUTS.items()
        ):
            result = score_and_differentiate(model, sequences, layout(tokens))
            for figure, value in compare(result, expected).items():
                limit = LIMITS[dtype][figure]
                context.expect(f"{prefix}{name}.{dtype}.{figure}", value, at_most=limit)


def _score_alone(
    model: PreTrainedModel, sequences: Sequence[MaskedTokens]
) -> tuple[list[Tensor], Tensor]:
    """Return the log-probs of each sequence, and the gradient of all, one forward pass each."""
    results = [
        score_and_differentiate(model, [sequence], PaddedLayout(4096), first=number)
        for number, sequence in enumerate(sequences)
    ]
    gradient = torch.stack([gradient for _, gradient in results]).sum(dim=0)
    return [rows[0] for rows, _ in results], gradient


def score_and_differentiate(
    model: PreTrainedModel,
    sequences: Sequence[MaskedTokens],
    layout: SequenceLayout,
    *,
    first: int = 0,
) -> tuple[list[Tensor], Tensor]:
    """Return the log-probs of each sequence, and the gradient of a loss that weighs all of them
    differently; `first` is the number of the first one in that loss."""
    model.zero_grad(set_to_none=True)
    row_logprobs: dict[int, Tensor] = {}
    for indices in layout.plan(sequences):
        tokens = layout.tokens([sequences[i] for i in indices], device=model.device)
        scores = score(model, tokens, temperature=1.0, head_at_positions=True)
        factors = torch.tensor([1.0 + (first + i) % 3 for i in indices], device=model.device)
        (scores.logprobs * factors[:, None]).sum().backward()
        for row, index in enumerate(indices):
            row_logprobs[index] = scores.logprobs[row][tokens.mask[row]].detach().float().cpu()
    gradients = [p.grad.float().flatten().cpu() for p in model.parameters() if p.grad is not None]
    return [row_logprobs[i] for i in range(len(sequences))], torch.cat(gradients)


def compare(
    found: tuple[list[Tensor], Tensor], expected: tuple[list[Tensor], Tensor]
) -> dict[str, float]:
    """Return the distances of log-probs and gradients from those that are expected."""
    gaps = (torch.cat(found[0]) - torch.cat(expected[0])).abs()
    distance = (found[1] - expected[1]).norm() / expected[1].norm()
    return {
        "max_nats": float(gaps.max()),
        "mean_nats": float(gaps.mean()),
        "gradient": float(distance),
    }


def check_head(context: CheckContext) -> None:
    """Compare the head in chunks with all logits at once, in float32 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, 64, generator=generator).bfloat16().float()
    weight = (0.2 * torch.randn(VOCABULARY, 64, generator=generator)).bfloat16().float()
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    expected = _predict_whole(hidden, weight, targets)
    for dtype in list_dtypes(context.device):
        kind: dict[str, Any] = {"device": context.device, "dtype": getattr(torch, dtype)}
        chunked = _predict_in_chunks(
            hidden.to(**kind), weight.to(**kind), targets.to(context.device)
        )
        for name, value in _compare_predictions(chunked, expected).items():
            context.expect(f"{dtype}.{name}", value, at_most=HEAD_LIMITS[dtype][name])


def _predict_whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    logs = (hidden @ weight.t()).log_softmax(dim=-1)
    logprobs = logs.gather(-1, targets[:, None])[:, 0]
    entropies = -(logs.exp() * logs).sum(dim=-1)
    (logprobs.sum() + 0.5 * entropies.sum()).backward()
    return _collect(logprobs, entropies, hidden, weight)


def _predict_in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    linear = nn.Linear(64, VOCABULARY, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach())
    hidden = hidden.detach().requires_grad_()
    # More rows than the plain head takes, and a last chunk that is not full.
    assert head.PLAIN_LOGITS // VOCABULARY < ROWS
    chunked = head.predict(linear, hidden, targets, temperature=1.0, chunk_tokens=113)
    (chunked.logprobs.sum() + 0.5 * chunked.entropies.sum()).backward()
    return _collect(chunked.logprobs, chunked.entropies, hidden, linear.weight)


def _collect(logprobs: Tensor, entropies: Tensor, hidden: Tensor, weight: Tensor) -> list[Tensor]:
    assert hidden.grad is not None
    assert weight.grad is not None
    gradient = torch.cat([hidden.grad.flatten(), weight.grad.flatten()])
    return [each.detach().float().cpu() for each in (logprobs, entropies, gradient)]


def _compare_predictions(found: list[Tensor], expected: list[Tensor]) -> dict[str, float]:
    logprobs, entropies = (
        float((a - b).abs().max()) for a, b in zip(found[:2], expected, strict=False)
    )
    gradient = float((found[2] - expected[2]).norm() / expected[2].norm())
    return {"logprobs": logprobs, "entropies": entropies, "gradient": gradient}
