"""Small policies and batches that the checks share. Their seeds are fixed: all machines have the
same ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.run import MakePolicySection
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of
from agentrl.models.folders import make_model
from agentrl.models.quiet import no_bars

PolicyDtype = Literal["float32", "bfloat16"]
Score = Callable[[Sequence[int]], Sequence[float]]
"""Function that returns the log-prob of every token but the first."""
SMALL = MakePolicySection(
    hidden_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=64,
    intermediate_size=256,
    vocab_size=512,
    initializer_range=0.1,
)
"""A policy whose weights are so large that attending to the wrong tokens changes its log-probs by
nats, also in bfloat16."""
CONTEXT_TOKENS = 1024


def list_dtypes(device: str) -> tuple[PolicyDtype, ...]:
    """Return the types of weights that a device computes in."""
    has_bfloat16 = device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    return ("float32", "bfloat16") if has_bfloat16 else ("float32",)


def write_policy(folder: Path, *, seed: int = 0, section: MakePolicySection = SMALL) -> Path:
    """Write a new policy with its tokenizer as a Hugging Face folder, and return that.

    Its weights are rounded to bfloat16, so that both types of weights are the same model.
    """
    tokenizer = train_tokenizer(["what is 12 + 7?"], vocab_size=section.vocab_size, folder=folder)
    model = make_model(
        section,
        vocab_size=section.vocab_size,
        eos_token_id=int(tokenizer.eos_token_id),  # pyright: ignore[reportArgumentType]
        pad_token_id=int(tokenizer.pad_token_id),  # pyright: ignore[reportArgumentType]
        context_tokens=CONTEXT_TOKENS,
        seed=seed,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    with no_bars():
        model.save_pretrained(folder)
    return folder


def draw_tokens(count: int, *, seed: int, vocabulary: int = SMALL.vocab_size) -> Int[ndarray, " _"]:
    """Return so many random token ids."""
    return np.random.default_rng(seed).integers(0, vocabulary, count)


def build_batch(
    score: Score,
    *,
    groups: int = 2,
    group_size: int = 4,
    prompt_tokens: int = 40,
    sampled_tokens: int = 60,
    vocabulary: int = SMALL.vocab_size,
    seed: int = 0,
) -> TrainingBatch:
    """Return groups of random trajectories, as if the policy that `score` asks had sampled them."""
    made: list[TrainingGroup] = []
    for number in range(groups):
        prompt = draw_tokens(prompt_tokens, seed=seed + 1000 * number, vocabulary=vocabulary)
        samples = [
            _build_sample(
                prompt,
                draw_tokens(
                    sampled_tokens - 3 * sample,
                    seed=seed + 1000 * number + sample + 1,
                    vocabulary=vocabulary,
                ),
                score,
                name=f"task-{number}",
                sample=sample,
            )
            for sample in range(group_size)
        ]
        made.append(TrainingGroup(f"task-{number}", tuple(samples)))
    return TrainingBatch(
        groups=tuple(made),
        owners=tuple(range(groups)),
        trees=groups,
        trajectories=groups * group_size,
    )


def _build_sample(
    prompt: Int[ndarray, " _"],
    sampled: Int[ndarray, " _"],
    score: Score,
    *,
    name: str,
    sample: int,
) -> TrainingSample:
    token_ids = np.concatenate([prompt, sampled])
    mask = np.arange(len(token_ids)) >= len(prompt)
    return TrainingSample(
        task_id=name,
        sample=sample,
        reward=float(sample % 2),
        token_ids=token_ids,
        mask=mask,
        behaviour=np.array([0.0, *score(token_ids.tolist())]),
        spans=spans_of(mask, nodes=np.where(mask, sample + 1, 0)),
    )
