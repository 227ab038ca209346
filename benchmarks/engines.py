"""Sampling engines on one workload with a long tail of lengths: tokens per CPU-second.

The model is a random 4.2 M Qwen3 (vocabulary 4096), the prompts have 64 tokens, the completions'
lengths are lognormal (mean 128, sigma 1.2, at most 1024), 32 requests decode at once, temperature
1, one thread. `gen32` is one static batch's worth of requests, the case `model.generate` can run;
`gen96` keeps the 32 places filled for longer. Lengths are fixed beforehand and nothing stops early,
so every contender samples the same number of useful tokens; what a static batch computes beyond a
row's length is not useful. Every contender returns log-probs except `generate`, which is spared it.

Before anything is timed, the log-probs of ours and of continuous batching are compared with a plain
forward pass; a difference beyond 1e-4 ends the benchmark.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from agentrl.engine.local import LocalEngine
from agentrl.policy import GenerateRequest
from benchmarks.harness import Benchmark, Contender, Run

SLOTS = 32
PROMPT_TOKENS = 64
LONGEST = 1024
VOCABULARY = 4096
TOLERANCE_NATS = 1e-4
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its prompt, and how many tokens to sample."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a contender made of a job."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def policy() -> PreTrainedModel:
    """Return the model, the same in every process."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def jobs(count: int, longest: int = LONGEST) -> list[Job]:
    """Return the first requests of the workload."""
    rng = np.random.default_rng(0)
    sigma = 1.2
    lengths = rng.lognormal(np.log(128) - sigma**2 / 2, sigma, count)
    prompts = rng.integers(0, VOCABULARY, (count, PROMPT_TOKENS))
    # The tail is what the workload is about, so however few are drawn, one is of the longest.
    lengths[0] = longest
    return [
        Job(tuple(prompt), int(length))
        for prompt, length in zip(prompts.tolist(), np.clip(lengths, 1, longest), strict=True)
    ]


def total(work: Sequence[Job]) -> int:
    """Return how many useful tokens a workload asks for."""
    return sum(job.tokens for job in work)


async def local(engine: LocalEngine, work: Sequence[Job]) -> list[Sampled]:
    """Sample a workload with ours."""
    requests = [
        GenerateRequest(id=str(i), prompt=job.prompt, max_new_tokens=job.tokens, seed=i)
        for i, job in enumerate(work)
    ]
    replies = await asyncio.gather(*(engine.generate(request) for request in requests))
    return [Sampled(reply.token_ids, reply.logprobs) for reply in replies]


def local_engine() -> LocalEngine:
    """Return ours, ready."""
    return LocalEngine(policy(), slots=SLOTS, context_tokens=PROMPT_TOKENS + LONGEST, threads=1)


def batching_manager(model: Any) -> Any:
    """Return transformers' continuous batching, running, with the settings that suit a CPU.

    Its defaults are made for GPUs: page size, number of blocks and batch size are set as measured
    best on this workload.
    """
    sampling = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    settings = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=SLOTS * (PROMPT_TOKENS + LONGEST) // 32 + SLOTS,
        max_batch_tokens=256,
        max_requests_per_batch=SLOTS,
        return_logprobs=True,
        use_cuda_graph=False,
        use_async_batching=False,
        seed=0,
    )
    manager = model.init_continuous_batching(
        generation_config=sampling, continuous_batching_config=settings
    )
    manager.start()
    return manager


def continuous(manager: Any, work: Sequence[Job], name: str = "run") -> list[Sampled]:
    """Sample a workload with transformers' continuous batching."""
    for index, job in enumerate(work):
        manager.add_request(
            list(job.prompt), request_id=f"{name}-{index}", max_new_tokens=job.tokens
        )
    done: dict[str, Sampled] = {}
    deadline = time.monotonic() + WAIT_S
    while len(done) < len(work):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(work) - len(done)} of {len(work)} requests never ended")
        reply = manager.get_result(timeout=1)
        if reply is not None and reply.is_finished():
            sampled = Sampled(tuple(reply.generated_tokens), tuple(reply.logprobs))
            done[reply.request_id] = sampled
    return [done[f"{name}-{index}"] for index in range(len(work))]


def generate(model: Any, work: Sequence[Job]) -> None:
    """Sample a workload as one static batch, which runs as long as its longest row."""
    prompts = torch.tensor([job.prompt for job in work])
    longest = max(job.tokens for job in work)
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=longest,
        min_new_tokens=longest,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
    )


def set_up_local32() -> Run:
    """Ours on gen32."""
    return _local(32)


def set_up_local96() -> Run:
    """Ours on gen96."""
    return _local(96)


def set_up_continuous96() -> Run:
    """Continuous batching on gen96."""
    torch.set_num_threads(1)
    manager = batching_manager(policy())
    continuous(manager, jobs(SLOTS, longest=8), "warm-up")
    work = jobs(96)

    def run() -> float:
        continuous(manager, work)
        return total(work)

    return run


def set_up_generate32() -> Run:
    """One static batch on gen32."""
    torch.set_num_threads(1)
    model = policy()
    generate(model, jobs(SLOTS, longest=8))
    work = jobs(32)

    def run() -> float:
        generate(model, work)
        return total(work)

    return run


def _local(count: int) -> Run:
    engine = local_engine()
    asyncio.run(local(engine, jobs(SLOTS, longest=8)))
    work = jobs(count)

    def run() -> float:
        asyncio.run(local(engine, work))
        return total(work)

    return run


def worst_gap_nats(model: Any, work: Sequence[Job], replies: Sequence[Sampled]) -> float:
    """Return the largest difference between reported log-probs and a plain forward pass."""
    worst = 0.0
    for job, reply in zip(work, replies, strict=True):
        ids = torch.tensor([job.prompt + reply.tokens])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, len(job.prompt) - 1 : -1].float().log_softmax(-1)
        want = logprobs.gather(-1, torch.tensor(reply.tokens).unsqueeze(-1)).squeeze(-1)
        worst = max(worst, float((want - torch.tensor(reply.logprobs)).abs().max()))
    return worst


def gate(bench: Benchmark) -> None:
    """State how exact the log-probs are, and stop if speed would be of something wrong."""
    work, model = jobs(SLOTS, longest=100), policy()
    gaps = {"ours": worst_gap_nats(model, work, asyncio.run(local(local_engine(), work)))}
    manager = batching_manager(policy())
    try:
        gaps["transformers"] = worst_gap_nats(model, work, continuous(manager, work))
    finally:
        manager.stop(block=True, timeout=30)
    for name, gap in gaps.items():
        bench.row(
            f"log-prob error, {name}",
            gap,
            unit="nats",
            peer="full forward",
            goal=TOLERANCE_NATS,
            better="lower",
        )
    if gaps["ours"] > TOLERANCE_NATS:
        raise SystemExit(f"log-probs differ by {gaps['ours']} nats; speed is not measured")


def contender(set_up: Any) -> Contender:
    """Return a contender with one thread and a process of its own."""
    return Contender(set_up=set_up, own_process=True, environ={"OMP_NUM_THREADS": "1"})


def main() -> None:
    """Measure, print, write."""
    bench = Benchmark.from_command_line("engines", __doc__)
    torch.set_num_threads(1)
    gate(bench)
    contenders = {
        "ours gen96": contender(set_up_local96),
        "continuous batching gen96": contender(set_up_continuous96),
        "ours gen32": contender(set_up_local32),
        "generate gen32": contender(set_up_generate32),
    }
    runs = bench.compare(contenders)
    for name, measured in runs.items():
        bench.rate(name, measured, unit="tokens")
    bench.ratio(
        "gen96, ours",
        runs["ours gen96"],
        runs["continuous batching gen96"],
        peer="transformers continuous batching",
        goal=2.5,
    )
    bench.ratio(
        "gen32, ours",
        runs["ours gen32"],
        runs["generate gen32"],
        peer="model.generate, static batch of 32",
        goal=10,
    )
    bench.finish()


if __name__ == "__main__":
    main()
