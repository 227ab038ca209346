"""vLLM asleep beside a trainer: what it gives up, and what it is after new weights wake it."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import torch

from agentrl.config.run import MakePolicySection
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import GenerateRequest, ScoringEngine
from agentrl.rollout.scheduler.scheduler import SleepingEngine
from agentrl.selfcheck.checks.engines import (
    VLLM_CACHE_BYTES,
    build_vllm_spec,
    expect_small_gap,
    require_vllm,
)
from agentrl.selfcheck.checks.policies import (
    PolicyDtype,
    draw_tokens,
    list_dtypes,
    write_policy,
)
from agentrl.selfcheck.checks.weights import (
    PROOF_LIMITS,
    VERSION,
    expect_old_weights,
    find_fault,
    open_trainer,
    prove_weights,
)
from agentrl.selfcheck.context import CheckContext, CheckFailed, CheckSkipped

LEVELS = (2, 1)
"""Levels of `engine.vllm.sleep_level`; the one that drops the weights comes first."""
MOST_KEPT = 0.25
"""Largest share of weights and KV cache that may stay on the device: either alone is more."""
POLICY = MakePolicySection(
    hidden_size=1024,
    layers=4,
    heads=16,
    kv_heads=8,
    head_dim=64,
    intermediate_size=3072,
    vocab_size=32_768,
    initializer_range=0.05,
)
"""A policy as large as the KV cache, so that it shows whether weights have left the device."""
ASLEEP_S = 1.0
"""Seconds in which a sleeping engine must not answer."""
DEADLINE_S = 120.0
"""Seconds in which a request that waited has to be answered after waking."""
NEW_TOKENS = 16


class SleepingSampler(SleepingEngine, ScoringEngine, Protocol):
    """An engine that sleeps, and scores tokens."""


def check_sleep(context: CheckContext) -> None:
    """Have vLLM sleep in each level, and wake it with other weights."""
    if context.device == "cpu":
        raise CheckSkipped("sleep gives up memory of a GPU, and vLLM's CPU build ignores it")
    require_vllm()
    folder = write_policy(context.folder / "policy", section=POLICY)
    other = write_policy(context.folder / "other", seed=1, section=POLICY)
    dtype: PolicyDtype = list_dtypes(context.device)[-1]
    old, new = (open_trainer(each, device=context.device, dtype=dtype) for each in (folder, other))
    holds_bytes = VLLM_CACHE_BYTES + sum(
        p.numel() * p.element_size() for p in old.model.parameters()
    )

    async def sleep_once(level: int) -> None:
        spec = build_vllm_spec(folder, dtype, sleep_level=level)
        async with spec.open() as engine:
            assert isinstance(engine, SleepingEngine)
            assert isinstance(engine, ScoringEngine)
            await expect_sleep(
                context,
                engine,
                old=old,
                new=new,
                dtype=dtype,
                level=level,
                holds_bytes=holds_bytes,
                read_free_bytes=lambda: torch.cuda.mem_get_info()[0],
            )

    start_s = time.monotonic()
    for level in LEVELS:
        if level != LEVELS[0] and context.left_s < 1.5 * (time.monotonic() - start_s):
            context.record(f"level_{level}", "not tried: no time was left")
            continue
        asyncio.run(sleep_once(level))


async def expect_sleep(
    context: CheckContext,
    engine: SleepingSampler,
    *,
    old: PolicyTrainer,
    new: PolicyTrainer,
    dtype: PolicyDtype,
    level: int,
    holds_bytes: int,
    read_free_bytes: Callable[[], int],
) -> None:
    """Have an engine with the weights of `old` sleep, and wake it with those of `new`.

    Asleep it must give up most of the bytes that it holds, and answer nothing. Awake it must prove
    the new weights, have its memory again, answer what was asked meanwhile, and sample as the
    trainer scores.
    """
    name = f"level_{level}"
    before, after = (prove_weights(trainer, PROOF_LIMITS[dtype]) for trainer in (old, new))
    await expect_old_weights(engine, before, after)
    awake = read_free_bytes()
    await engine.sleep()
    asleep = read_free_bytes()
    freed_bytes = asleep - awake
    context.record(f"{name}.held_mib", round(holds_bytes / 2**20, 1))
    context.record(f"{name}.freed_mib", round(freed_bytes / 2**20, 1))
    context.expect(f"{name}.kept", round(1 - freed_bytes / holds_bytes, 3), at_most=MOST_KEPT)
    request = GenerateRequest(
        id=f"selfcheck/asleep/{level}",
        prompt=tuple(draw_tokens(20, seed=level).tolist()),
        max_new_tokens=NEW_TOKENS,
        seed=level,
    )
    waiting = asyncio.ensure_future(engine.generate(request))
    try:
        await asyncio.wait({waiting}, timeout=ASLEEP_S)
        if waiting.done():
            waiting.result()
            raise CheckFailed("the engine answered a request while it slept")
        start_s = time.monotonic()
        await engine.load(after, VERSION)
        context.record(f"{name}.wake_seconds", round(time.monotonic() - start_s, 3))
        if fault := await find_fault(engine, after, version=VERSION):
            raise CheckFailed(f"after it woke in level {level}, {fault}")
        turn = await asyncio.wait_for(waiting, DEADLINE_S)
    finally:
        waiting.cancel()
    if stale := {*turn.versions} - {VERSION}:
        raise CheckFailed(f"after it woke, a turn has tokens of version {min(stale)}")
    taken_bytes = asleep - read_free_bytes()
    context.expect(
        f"{name}.not_taken_again", round(1 - taken_bytes / holds_bytes, 3), at_most=MOST_KEPT
    )
    await expect_small_gap(context, engine, new, dtype, name=f"{name}.{dtype}")
