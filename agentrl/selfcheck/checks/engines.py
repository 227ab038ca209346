"""Engines against the trainer: what each says of the same tokens under the same weights."""

import asyncio
from pathlib import Path
from typing import Any

from agentrl.config.learn import LearnSection
from agentrl.engine.spec import EngineSpec
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import Completion, GenerateRequest, PolicyEngine, ScoringEngine
from agentrl.runtime.extras import is_installed
from agentrl.runtime.vllm_release import check_release
from agentrl.selfcheck.checks.policies import (
    CONTEXT_TOKENS,
    PolicyDtype,
    draw_tokens,
    list_dtypes,
    write_policy,
)
from agentrl.selfcheck.checks.weights import build_spec, expect_transfer, open_trainer
from agentrl.selfcheck.context import CheckContext, CheckFailed, CheckSkipped

GAP_LIMITS = {"float32": 1e-3, "bfloat16": LearnSection().gap_alarm.mean_abs}
"""Largest mean difference of a log-prob, in nats; in bfloat16 that of `learn.gap_alarm`."""
REQUESTS = 8
NEW_TOKENS = 48
VLLM_CACHE_BYTES = 2**28


def check_local_gap(context: CheckContext) -> None:
    """Sample from the local engine in each type of weights, and score by the trainer."""
    folder = write_policy(context.folder / "policy")
    for dtype in list_dtypes(context.device):
        spec = build_spec(folder, device=context.device, dtype=dtype, slots=REQUESTS)
        trainer = open_trainer(folder, device=context.device, dtype=dtype)
        asyncio.run(_ask_local(context, spec, trainer, dtype))


def check_vllm(context: CheckContext) -> None:
    """Do the same with vLLM, and load other weights into it."""
    require_vllm()
    folder = write_policy(context.folder / "policy")
    other = write_policy(context.folder / "other", seed=1)
    dtype: PolicyDtype = "bfloat16" if "bfloat16" in list_dtypes(context.device) else "float32"
    spec = build_vllm_spec(folder, dtype)

    async def ask() -> None:
        async with spec.open() as engine:
            trainer = open_trainer(folder, device=context.device, dtype=dtype)
            await expect_small_gap(context, engine, trainer, dtype)
            assert isinstance(engine, ScoringEngine)
            new = open_trainer(other, device=context.device, dtype=dtype)
            await expect_transfer(context, engine, old=trainer, new=new, dtype=dtype)

    asyncio.run(ask())


def check_vllm_ipc(context: CheckContext) -> None:
    """Load weights into vLLM on the same GPU by CUDA's handles, without a copy on the host."""
    if context.device == "cpu":
        raise CheckSkipped("CUDA's handles need a GPU")
    require_vllm()
    folder = write_policy(context.folder / "policy")
    other = write_policy(context.folder / "other", seed=1)
    dtype: PolicyDtype = list_dtypes(context.device)[-1]
    spec = build_vllm_spec(folder, dtype, transfer="ipc")

    async def send() -> None:
        async with spec.open() as engine:
            assert isinstance(engine, ScoringEngine)
            old, new = (
                open_trainer(each, device=context.device, dtype=dtype) for each in (folder, other)
            )
            await expect_transfer(context, engine, old=old, new=new, dtype=dtype)

    asyncio.run(send())


def require_vllm() -> None:
    """Raise `CheckSkipped` without vLLM, and `ConfigError` for a release that is not supported."""
    if not is_installed("vllm"):
        raise CheckSkipped("vLLM is not installed")
    check_release()


def build_vllm_spec(folder: Path, dtype: PolicyDtype, **settings: Any) -> EngineSpec:
    """Return the recipe of vLLM's server, with further fields of `engine.vllm`."""
    return EngineSpec(
        kind="vllm",
        folder=str(folder),
        slots=REQUESTS,
        context_tokens=CONTEXT_TOKENS,
        dtype=dtype,
        vllm={
            "memory_fraction": 0.3,
            "cache_bytes": VLLM_CACHE_BYTES,
            "eager": True,
            **settings,
        },
    )


async def _ask_local(
    context: CheckContext, spec: EngineSpec, trainer: PolicyTrainer, dtype: PolicyDtype
) -> None:
    async with spec.open() as engine:
        await expect_small_gap(context, engine, trainer, dtype)


async def expect_small_gap(
    context: CheckContext,
    engine: PolicyEngine,
    trainer: PolicyTrainer,
    dtype: PolicyDtype,
    *,
    name: str = "",
) -> None:
    """Sample turns of an engine, and expect the trainer to give their tokens the same log-probs.

    Figures begin with `name`, or with the type of the weights.
    """
    name = name or dtype
    requests = [
        GenerateRequest(
            id=f"selfcheck/{number}",
            prompt=tuple(draw_tokens(11 + 17 * number, seed=number).tolist()),
            max_new_tokens=NEW_TOKENS,
            seed=number,
        )
        for number in range(REQUESTS)
    ]
    turns = await asyncio.gather(*(engine.generate(request) for request in requests))
    pairs = zip(requests, turns, strict=True)
    gaps = [gap for request, turn in pairs for gap in _measure_gaps(trainer, request, turn)]
    context.record(f"{name}.tokens", len(gaps))
    context.record(f"{name}.max_nats", max(gaps, default=0.0))
    mean = sum(gaps) / max(1, len(gaps))
    context.expect(f"{name}.mean_nats", mean, at_most=GAP_LIMITS[dtype])
    if len(gaps) < REQUESTS:
        raise CheckFailed(f"the engine sampled {len(gaps)} tokens in {REQUESTS} turns")


def _measure_gaps(
    trainer: PolicyTrainer, request: GenerateRequest, turn: Completion
) -> list[float]:
    expected = trainer.logprobs((*request.prompt, *turn.token_ids))[len(request.prompt) - 1 :]
    return [abs(a - b) for a, b in zip(turn.logprobs, expected, strict=True)]
