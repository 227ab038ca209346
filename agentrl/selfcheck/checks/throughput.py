"""Speed and memory of training steps and of sampling, against the device's own matrix products."""

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.run import MakePolicySection
from agentrl.engine.spec import EngineSpec
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from agentrl.policy import GenerateRequest, PolicyEngine
from agentrl.selfcheck.checks.device import measure_product_rate, synchronize
from agentrl.selfcheck.checks.policies import (
    PolicyDtype,
    build_batch,
    draw_tokens,
    list_dtypes,
    write_policy,
)
from agentrl.selfcheck.context import CheckContext, host_peak_mib

STEPS = 3
"""Steps of which the fastest counts; one more comes before, in which kernels are compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSize:
    """Policy and batch that keep a device busy for seconds."""

    policy: MakePolicySection
    groups: int
    prompt_tokens: int
    sampled_tokens: int
    requests: int
    new_tokens: int


SIZES = {
    "cpu": WorkSize(
        policy=MakePolicySection(
            hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, intermediate_size=768
        ),
        groups=1,
        prompt_tokens=64,
        sampled_tokens=192,
        requests=8,
        new_tokens=32,
    ),
    "cuda": WorkSize(
        policy=MakePolicySection(
            hidden_size=1024,
            layers=28,
            heads=16,
            kv_heads=8,
            head_dim=128,
            intermediate_size=3072,
            vocab_size=32_768,
        ),
        groups=4,
        prompt_tokens=128,
        sampled_tokens=896,
        requests=32,
        new_tokens=128,
    ),
}
"""By device; that of GPUs has the layers of Qwen3-0.6B, and needs some 12 GiB to train."""
GROUP_SIZE = 4


def check_throughput(context: CheckContext) -> None:
    """Measure training in the precision that the device is for, then sampling."""
    size = SIZES["cpu" if context.device == "cpu" else "cuda"]
    folder = write_policy(context.folder / "policy", section=size.policy)
    is_gpu = context.device != "cpu"
    dtype: PolicyDtype = list_dtypes(context.device)[-1] if is_gpu else "float32"
    context.record("dtype", dtype)
    peak = measure_product_rate(context.device, getattr(torch, dtype))
    context.record("product.tflops", round(peak / 1e12, 3))
    _measure_training(context, folder, size, dtype, peak)
    _record_peak(context, "train")
    _measure_sampling(context, folder, size, dtype)


def _measure_training(
    context: CheckContext, folder: Path, size: WorkSize, dtype: PolicyDtype, peak: float
) -> None:
    model = load_model(folder, dtype="float32", device=context.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context.record("parameters", parameters)
    # Packed: what sequences have in common is computed for each of them, so that work is tokens.
    config = LearnSection(layout="packed", precision=dtype)
    trainer = PolicyTrainer(model, config, seed=0)
    batch = build_batch(
        trainer.logprobs,
        groups=size.groups,
        group_size=GROUP_SIZE,
        prompt_tokens=size.prompt_tokens,
        sampled_tokens=size.sampled_tokens,
        vocabulary=size.policy.vocab_size,
    )
    lengths = [len(sample.token_ids) for group in batch.groups for sample in group.samples]
    seconds: list[float] = []
    for _ in range(1 + STEPS):
        synchronize(context.device)
        start_s = time.monotonic()
        trainer.learn(batch)
        synchronize(context.device)
        seconds.append(time.monotonic() - start_s)
    best_s = min(seconds[1:])
    flops = count_training_flops(model, lengths)
    context.record("train.first_seconds", round(seconds[0], 3))
    context.record("train.seconds", round(best_s, 4))
    context.record("train.tokens", sum(lengths))
    context.record("train.tokens_per_s", round(sum(lengths) / best_s, 1))
    context.record("train.tflops", round(flops / best_s / 1e12, 4))
    context.record("train.mfu_of_product", round(flops / best_s / peak, 4))


def count_training_flops(model: PreTrainedModel, lengths: Sequence[int]) -> float:
    """Return the floating-point operations of a forward and a backward pass over sequences.

    Six for each weight of a matrix and token, and causal attention: 6 x layers x width x length for
    each token, with the width of all query heads (Narayanan et al. 2021, arXiv 2104.04473, halved).
    The embedding is looked up and no product; the head counts for every token.
    """
    config = model.config.get_text_config()
    ends: Any = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (end.weight for end in ends)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    if head is not embedding:
        matrices -= embedding.numel()
    width = config.num_attention_heads * config.head_dim
    attention = 6 * config.num_hidden_layers * width * sum(length**2 for length in lengths)
    return 6.0 * matrices * sum(lengths) + attention


def _measure_sampling(
    context: CheckContext, folder: Path, size: WorkSize, dtype: PolicyDtype
) -> None:
    spec = EngineSpec(
        kind="local",
        folder=str(folder),
        slots=size.requests,
        context_tokens=size.prompt_tokens + size.new_tokens,
        dtype=dtype,
        device=context.device,
        threads=torch.get_num_threads(),
    )

    async def sample() -> None:
        async with spec.open() as engine:
            await _sample_turns(engine, size, seed=0)  # warms it up
            start_s = time.monotonic()
            tokens = await _sample_turns(engine, size, seed=1)
            seconds = time.monotonic() - start_s
        context.record("sample.requests", size.requests)
        context.record("sample.tokens", tokens)
        context.record("sample.tokens_per_s", round(tokens / seconds, 1))

    asyncio.run(sample())
    _record_peak(context, "sample")


def _record_peak(context: CheckContext, name: str) -> None:
    """Record the most device memory since the last call, and the most host memory so far."""
    if context.device == "cpu":
        context.record(f"{name}.peak_mib", round(host_peak_mib(), 1))
        return
    context.record(f"{name}.peak_mib", round(torch.cuda.max_memory_allocated() / 2**20, 1))
    gc.collect()
    torch.cuda.reset_peak_memory_stats()


async def _sample_turns(engine: PolicyEngine, size: WorkSize, *, seed: int) -> int:
    """Return the number of tokens sampled in all turns at once."""
    requests = [
        GenerateRequest(
            id=f"selfcheck/{seed}/{index}",
            prompt=tuple(draw_tokens(size.prompt_tokens, seed=1000 * seed + index).tolist()),
            max_new_tokens=size.new_tokens,
            seed=index,
        )
        for index in range(size.requests)
    ]
    turns = await asyncio.gather(*map(engine.generate, requests))
    return sum(len(turn.token_ids) for turn in turns)
