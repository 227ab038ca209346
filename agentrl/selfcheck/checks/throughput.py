"""Speed and memory of training steps and of sampling, against the device's own matrix products."""

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.run import MakePolicySection
from agentrl.engine.spec import EngineSpec
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.sample import TrainingSample
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from agentrl.policy import GenerateRequest, PolicyEngine
from agentrl.selfcheck.checks.device import measure_product_rate, synchronize
from agentrl.selfcheck.checks.memory import MemoryMeter, choose_size, predict_peak_bytes
from agentrl.selfcheck.checks.policies import (
    PolicyDtype,
    Score,
    build_batch,
    draw_tokens,
    list_dtypes,
    write_policy,
)
from agentrl.selfcheck.context import CheckContext, CheckSkipped, host_peak_mib

STEPS = 3
"""Steps of which the fastest counts; one more comes before, in which kernels are compiled."""
MEMORY_FACTOR = {"cpu": 1.5, "cuda": 1.25}
"""Largest measured peak, relative to the planned one, by device.

A plan is to be trusted with a decision, so a GPU that needs a quarter more is a fault of the plan
or of the trainer. Of all peaks that the plan was compared with, none was above it by more than 12 %
(docs/plan.md). On a CPU the allocator keeps freed pages: 1.21 was measured, and 0.97 without them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSize:
    """Policy and batch that keep a device busy for seconds."""

    policy: MakePolicySection
    groups: int
    prompt_tokens: int
    sampled_tokens: int
    requests: int
    new_tokens: int
    micro_batches: tuple[int, ...]
    """Tokens of a micro-batch; the largest that there is room for is taken."""


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
        micro_batches=(8192,),
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
        micro_batches=(8192, 4096, 2048),
    ),
}
"""By device; that of GPUs has the layers of Qwen3-0.6B, and needs 12 to 24 GiB to train."""
GROUP_SIZE = 4


def check_throughput(context: CheckContext) -> None:
    """Measure training in the precision that the device is for, then sampling."""
    size = SIZES["cpu" if context.device == "cpu" else "cuda"]
    folder = write_policy(context.folder / "policy", section=size.policy)
    is_gpu = context.device != "cpu"
    dtype: PolicyDtype = list_dtypes(context.device)[-1] if is_gpu else "float32"
    context.record("dtype", dtype)
    section, planned_bytes = _plan_training(context, folder, size, dtype)
    peak = measure_product_rate(context.device, getattr(torch, dtype))
    context.record("product.tflops", round(peak / 1e12, 3))
    _measure_training(context, folder, size, section, peak=peak, planned_bytes=planned_bytes)
    gc.collect()
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    _measure_sampling(context, folder, size, dtype)


def _build_batch(size: WorkSize, score: Score) -> TrainingBatch:
    return build_batch(
        score,
        groups=size.groups,
        group_size=GROUP_SIZE,
        prompt_tokens=size.prompt_tokens,
        sampled_tokens=size.sampled_tokens,
        vocabulary=size.policy.vocab_size,
    )


def _list_samples(batch: TrainingBatch) -> list[TrainingSample]:
    return [sample for group in batch.groups for sample in group.samples]


def _plan_training(
    context: CheckContext, folder: Path, size: WorkSize, dtype: PolicyDtype
) -> tuple[LearnSection, int]:
    """Return the section with the largest micro-batch that there is room for, and the bytes that
    the plan says of it. Raises `CheckSkipped` where there is room for none."""
    free_bytes = inf if context.device == "cpu" else torch.cuda.mem_get_info()[0]
    # A plan looks at tokens and masks alone.
    samples = _list_samples(_build_batch(size, lambda token_ids: [0.0] * (len(token_ids) - 1)))
    # Packed: what sequences have in common is computed for each of them, so that work is tokens.
    sections = {
        tokens: LearnSection(layout="packed", precision=dtype, micro_batch_tokens=tokens)
        for tokens in size.micro_batches
    }
    needs_bytes = {
        tokens: predict_peak_bytes(folder, section, samples) for tokens, section in sections.items()
    }
    tokens_fitting = choose_size(needs_bytes, free_bytes)
    if tokens_fitting is None:
        needs, free = (each / 2**30 for each in (min(needs_bytes.values()), free_bytes))
        raise CheckSkipped(
            f"training would take {needs:.1f} GiB by its plan, and {free:.1f} GiB are free on the "
            "GPU; end what else uses it"
        )
    context.record("train.micro_batch_tokens", tokens_fitting)
    context.record("train.planned_mib", round(needs_bytes[tokens_fitting] / 2**20, 1))
    return sections[tokens_fitting], needs_bytes[tokens_fitting]


def _measure_training(
    context: CheckContext,
    folder: Path,
    size: WorkSize,
    section: LearnSection,
    *,
    peak: float,
    planned_bytes: int,
) -> None:
    meter = MemoryMeter(context.device)
    model = load_model(folder, dtype="float32", device=context.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context.record("parameters", parameters)
    trainer = PolicyTrainer(model, section, seed=0)
    batch = _build_batch(size, trainer.logprobs)
    lengths = [len(sample.token_ids) for sample in _list_samples(batch)]
    seconds: list[float] = []
    for number in range(1 + STEPS):
        synchronize(context.device)
        if number == 1:  # moments are there, as a plan has it
            meter.restart()
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
    compare_memory(context, planned_bytes=planned_bytes, measured_bytes=meter.read_peak_bytes())


def compare_memory(
    context: CheckContext, *, planned_bytes: int, measured_bytes: int | None
) -> None:
    """Record the measured peak beside the planned one, and expect it to be not far above."""
    if measured_bytes is None:
        context.record("train.peak_mib", None)
        return
    context.record("train.peak_mib", round(measured_bytes / 2**20, 1))
    limit = MEMORY_FACTOR["cpu" if context.device == "cpu" else "cuda"]
    ratio = round(measured_bytes / planned_bytes, 3)
    context.expect("train.peak_of_plan", ratio, at_most=limit)


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
    is_cpu = context.device == "cpu"
    peak_mib = host_peak_mib() if is_cpu else torch.cuda.max_memory_allocated() / 2**20
    context.record("sample.peak_mib", round(peak_mib, 1))


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
