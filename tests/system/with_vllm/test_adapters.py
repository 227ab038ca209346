"""vLLM's own adapters beside a plain forward pass over merged weights.

An engine that has none of its own merges them: test_engine.py.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings
from agentrl.engine.vllm.in_process.adapters import arguments
from agentrl.errors import ConfigError
from agentrl.testing.engine import check_engine
from agentrl.weight_sync.adapters import BaseWeights
from tests.support.adapters import TARGETS, adapted, base_of, merged
from tests.system.with_vllm.test_engine import (
    CONTEXT_TOKENS,
    VOCABULARY,
    model,
    picked,
    policy_logprobs,
    request,
    score_of,
    worst_gap,
)

# vLLM and what it imports warn of each other.
pytestmark = pytest.mark.filterwarnings("default")


def settings_of(folder: Path) -> VllmSettings:
    return VllmSettings(
        model=folder,
        slots=8,
        context_tokens=CONTEXT_TOKENS,
        dtype="float32",
        prefill_tokens=24,
        adapter_rank=4,
        # Only whole blocks are cached, and those of a CPU hold as much as a context here.
        options={"block_size": 32},
    )


async def gap(engine: VllmEngine, policy: PreTrainedModel, version: int) -> float:
    """Return how far an engine that has a version is from a plain forward pass."""
    asked = [request(n) for n in range(6)]
    done = await asyncio.gather(*(engine.generate(one) for one in asked))
    assert {v for got in done for v in got.versions} == {version}
    return worst_gap([*zip(asked, done, strict=True)], [policy] * (version + 1))


async def check_updates_in_flight(
    engine: VllmEngine, policy: PreTrainedModel, base: BaseWeights, version: int
) -> None:
    """What is sampled and scored while adapters change is of the version that it names."""
    asked = [request(n) for n in range(12)]
    running = [asyncio.create_task(engine.generate(one)) for one in asked]
    while not any(one.logprobs for one in engine.in_flight):  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0.001)
    new = adapted(base, version + 1)
    await engine.load(new, version + 1)
    mixed = await asyncio.gather(*running)
    assert any(set(got.versions) == {version, version + 1} for got in mixed)
    plain = [merged(policy, adapted(base, each)) for each in (version, version + 1)]
    of_versions = [plain[0]] * (version + 1) + [plain[1]]
    assert worst_gap([*zip(asked, mixed, strict=True)], of_versions) <= 1e-3

    asked_score = score_of(request(90, prompt=(5, 6, 7)), tuple(range(100)))
    scoring = asyncio.create_task(engine.score(asked_score))
    while not any(one.logprobs for one in engine.in_flight):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    newest = adapted(base, version + 2)
    await engine.load(newest, version + 2)
    scores = await scoring  # what was scored before the load is scored again
    given = policy_logprobs(merged(policy, newest), asked_score.prompt, asked_score.token_ids)
    assert scores.version == version + 2
    assert scores.logprobs == pytest.approx(picked(given, asked_score.token_ids), abs=1e-3)


async def test_adapters_are_its_own_and_change_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine for all of it. The folder's weights are others than the base that is sent."""
    model(tied=True, seed=5).save_pretrained(tmp_path)
    policy, other = model(tied=True), model(tied=True, seed=1)
    base = base_of(policy)
    async with VllmEngine(settings_of(tmp_path)) as engine:
        assert await gap(engine, model(tied=True, seed=5), 0) <= 1e-3
        given = adapted(base, 1)
        kept = {name: (one.a.clone(), one.b.clone()) for name, one in given.adapters.items()}
        await engine.load(given, 1)
        assert await gap(engine, merged(policy, given), 1) <= 1e-3
        assert await gap(engine, policy, 1) > 0.1
        for name, (a, b) in kept.items():  # who gave them trains them on
            assert torch.equal(given.adapters[name].a, a)
            assert torch.equal(given.adapters[name].b, b)

        puts: list[str] = []
        core = engine._core  # pyright: ignore[reportPrivateUsage]
        put = core._load_base  # pyright: ignore[reportPrivateUsage]

        def noted(state: Mapping[str, Tensor]) -> None:
            puts.append("whole")
            put(state)

        monkeypatch.setattr(core, "_load_base", noted)
        # Fewer targets: what had an adapter and has none any more is as it was.
        fewer = adapted(base, 2, targets=("k_proj", "down_proj"))
        await engine.load(fewer, 2)
        assert await gap(engine, merged(policy, fewer), 2) <= 1e-3
        await engine.load(adapted(base, 3), 3)
        await check_updates_in_flight(engine, policy, base, 3)
        assert puts == []

        # Another base, whole weights, and adapters again.
        there = adapted(base_of(other), 6)
        await engine.load(there, 6)
        assert await gap(engine, merged(other, there), 6) <= 1e-3
        await engine.load(policy.state_dict(), 7)
        assert await gap(engine, policy, 7) <= 1e-3
        await engine.load(adapted(base, 8), 8)
        assert await gap(engine, merged(policy, adapted(base, 8)), 8) <= 1e-3
        assert puts == ["whole"] * 3
        await check_engine(
            engine,
            vocab_size=VOCABULARY,
            context_tokens=CONTEXT_TOKENS,
            weights=adapted(base, 9),
        )


async def test_adapters_that_it_has_no_place_for_are_refused(tmp_path: Path) -> None:
    policy = model(tied=False)
    policy.save_pretrained(tmp_path)
    given = adapted(base_of(policy), 1, targets=("lm_head", "q_proj"))
    async with VllmEngine(settings_of(tmp_path)) as engine:
        with pytest.raises(ConfigError, match=r"not for lm_head \(1 in all\)"):
            await engine.load(given, 1)
    assert arguments(str(tmp_path), 9)["max_lora_rank"] == 16
    assert arguments(str(tmp_path), 512)["lora_target_modules"] == sorted(TARGETS)
    with pytest.raises(ConfigError, match=r"learn\.lora\.rank is 513"):
        arguments(str(tmp_path), 513)
