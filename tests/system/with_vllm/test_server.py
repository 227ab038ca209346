"""vLLM's server as the default engine of `engine.kind: vllm`: versions, log-probs, faults.

Mutants seen caught: a tied head that is not sent; cached keys of older weights; versions of the
start of a request; a seed that does not move with the context; a server that outlives its owner.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.vllm.launch import VllmServerSettings
from agentrl.engine.vllm.server import VllmServerEngine, VllmServerRecipe, VllmServers
from agentrl.errors import ConfigError, EngineLost
from agentrl.policy import Sampling
from agentrl.testing.engine import check_engine
from tests.support.adapters import adapted, base_of, merged
from tests.support.processes import children, family, runs
from tests.system.with_vllm.test_endpoint import proven
from tests.system.with_vllm.test_engine import (
    CONTEXT_TOKENS,
    VOCABULARY,
    check_frequencies,
    check_scores,
    check_shaped_sampling,
    model,
    request,
    worst_gap,
)

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


def server(
    policy: PreTrainedModel, folder: Path, *, options: dict[str, Any] | None = None, **changes: Any
) -> VllmServerEngine:
    policy.save_pretrained(folder)
    settings = VllmServerSettings(
        model=folder,
        slots=16,
        context_tokens=CONTEXT_TOKENS,
        dtype="float32",
        cache_bytes=2**28,
        options={"block_size": 32, **(options or {})},
        **changes,
    )
    return VllmServerEngine(VllmServerRecipe(settings=settings, vocabulary=VOCABULARY))


async def check_in_flight(
    engine: VllmServerEngine, policies: Sequence[PreTrainedModel], plain: list[PreTrainedModel]
) -> list[tuple[Any, Any]]:
    """Load versions under running requests until one of them has met two; return what came."""
    for version in range(engine.version + 1, engine.version + 12):
        asked = [request(n, max_new_tokens=80) for n in range(12)]
        running = [asyncio.create_task(engine.generate(one)) for one in asked]
        # One that is short is done when the others have begun.
        await engine.generate(request(50, max_new_tokens=4))
        plain.append(policies[version % 2])
        await engine.load(plain[version].state_dict(), version)
        done = [*zip(asked, await asyncio.gather(*running), strict=True)]
        assert all(list(got.versions) == sorted(got.versions) for _, got in done)
        assert {v for _, got in done for v in got.versions} <= {version - 1, version}
        if any({*got.versions} == {version - 1, version} for _, got in done):
            return done
    pytest.fail("no request met new weights")


@pytest.mark.nightly
async def test_the_promises_of_an_engine(tmp_path: Path) -> None:
    policies = [model(tied=True), model(tied=True, seed=1)]
    async with server(policies[0], tmp_path / "policy") as engine:
        await check_engine(
            engine,
            vocab_size=VOCABULARY,
            context_tokens=CONTEXT_TOKENS,
            weights=policies[1].state_dict(),
            timeout_s=120.0,
            is_server=True,
        )


async def test_it_samples_and_updates_as_it_should(tmp_path: Path) -> None:
    """A tied head, whole weights by a folder; every update shows in every log-prob."""
    policies = [model(tied=True), model(tied=True, seed=1)]
    async with server(policies[0], tmp_path / "policy") as engine:
        await check_shaped_sampling(engine, policies[0])  # pyright: ignore[reportArgumentType]
        await check_frequencies(engine, policies[0])  # pyright: ignore[reportArgumentType]
        await check_scores(engine, policies[0])  # pyright: ignore[reportArgumentType]
        plain = [policies[0]]
        done = await check_in_flight(engine, policies, plain)
        assert worst_gap(done, plain) <= 1e-3
        for version in range(engine.version + 1, engine.version + 4):
            plain.append(policies[version % 2])
            plain[version].save_pretrained(tmp_path / str(version))  # leaves a tied head out
            await engine.load(tmp_path / str(version), version)
            asked = [request(n, max_new_tokens=12) for n in range(3)]
            got = await asyncio.gather(*(engine.generate(one) for one in asked))
            assert {v for one in got for v in one.versions} == {version}
            assert worst_gap([*zip(asked, got, strict=True)], plain) <= 1e-3


@pytest.mark.nightly
async def test_two_ranks_share_a_model(tmp_path: Path) -> None:
    """Tensor parallelism, and adapters that are merged: one update reaches both."""
    policy = model(tied=False)
    base = base_of(policy)
    plain = [policy, *(merged(policy, adapted(base, seed)) for seed in (1, 2))]
    options = {"tensor_parallel_size": 2}
    async with server(policy, tmp_path / "policy", options=options) as engine:
        for version in range(3):
            if version:
                await engine.load(proven(policy, base, version, says=version), version)
            asked = [request(n, max_new_tokens=16) for n in range(4)]
            done = await asyncio.gather(*(engine.generate(one) for one in asked))
            assert {v for one in done for v in one.versions} == {version}
            assert worst_gap([*zip(asked, done, strict=True)], plain) <= 1e-3
        policies = [policy, plain[2]]
        done = await check_in_flight(engine, policies, [*plain])


@pytest.mark.nightly
async def test_requests_are_kept_over_new_weights(tmp_path: Path) -> None:
    """Their cached keys are of both versions, so log-probs are of neither; versions are exact."""
    policy = model(tied=True)
    # So near each other that mixed keys show little, and another version's logits would show much.
    near = model(tied=True)
    with torch.no_grad():
        for weight in near.parameters():
            weight.mul_(1.02)
    changes: dict[str, Any] = {"update": "keep", "sleep_level": 1}
    async with server(policy, tmp_path / "policy", **changes) as engine:
        plain = [policy]
        done = await check_in_flight(engine, [policy, near], plain)
        assert worst_gap(done, plain) <= 0.05
        await engine.sleep()
        waiting = asyncio.create_task(engine.generate(request(60, max_new_tokens=4)))
        version = engine.version + 1
        await engine.load(policy.state_dict(), version)
        assert {*(await waiting).versions} == {version}


@pytest.mark.nightly
async def test_adapters_stay_adapters(tmp_path: Path) -> None:
    policy = model(tied=True)
    base = base_of(policy)
    plain = [policy, *(merged(policy, adapted(base, seed)) for seed in (1, 2, 3))]
    async with server(policy, tmp_path / "policy", adapter_rank=4) as engine:
        for version in (1, 2, 3):
            await engine.load(proven(policy, base, version, says=version), version)
            asked = [request(n, max_new_tokens=16) for n in range(4)]
            done = await asyncio.gather(*(engine.generate(one) for one in asked))
            assert {v for one in done for v in one.versions} == {version}
            assert worst_gap([*zip(asked, done, strict=True)], plain) <= 1e-3


@pytest.mark.nightly
async def test_a_server_that_is_killed_loses_its_requests_and_is_replaced(tmp_path: Path) -> None:
    policies = [model(tied=True), model(tied=True, seed=1)]
    engine = server(policies[0], tmp_path / "policy")
    async with engine:
        await engine.load(policies[1].state_dict(), 1)
        first = engine.pid
        assert first is not None
        members = family(first)
        assert len(members) >= 3, "the supervisor, the server, and the core"
        running = [
            asyncio.create_task(engine.generate(request(n % 8, id=f"k{n}", max_new_tokens=70)))
            for n in range(400)
        ]
        # Far more than it computes at once: some are there when it is killed, however busy we are.
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        (serving,) = children(first)
        os.kill(serving, signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)
        assert any(isinstance(end, EngineLost) for end in ends)
        assert all(isinstance(end, EngineLost) or len(end.token_ids) == 70 for end in ends)  # pyright: ignore[reportAttributeAccessIssue]
        asked = request(9)
        got = await engine.generate(asked)
        assert {*got.versions} == {1}
        assert worst_gap([(asked, got)], policies) <= 1e-3
        assert engine.pid != first
        members += family(engine.pid or 0)
    assert not [pid for pid in members if runs(pid)]


OWNER = """
import asyncio, sys, tempfile
from pathlib import Path
from agentrl.engine.vllm.launch import VllmServerSettings
from agentrl.engine.vllm.server import VllmServerEngine, VllmServerRecipe

async def main():
    settings = VllmServerSettings(
        model=Path(sys.argv[1]), context_tokens=128, dtype="float32", cache_bytes=2**28
    )
    engine = VllmServerEngine(VllmServerRecipe(settings=settings, vocabulary=512))
    async with engine:
        print(engine.pid, tempfile.gettempdir(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.nightly
def test_a_server_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    model(tied=True).save_pretrained(tmp_path)
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    # Sockets have short names: not below tmp_path.
    made = Path(tempfile.mkdtemp())
    variables = {**os.environ, "TMPDIR": str(made)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as owner:
        assert owner.stdout is not None
        pid, _, folder = owner.stdout.readline().partition(" ")
        members = family(int(pid))
        assert [*Path(folder.strip()).glob("agentrl-vllm-*")]
        assert len(members) >= 3
        owner.kill()
    until_s = time.monotonic() + 30
    while any(map(runs, members)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not [pid for pid in members if runs(pid)]
    assert not [*made.glob("agentrl-vllm-*")]
    shutil.rmtree(made)


async def test_what_vllm_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no.such.argument"):
        async with server(model(tied=True), tmp_path / "a", options={"no_such_argument": 3}):
            pass
    narrow = {"tensor_parallel_size": 3}  # four heads
    with pytest.raises(ConfigError, match="divisible"):
        async with server(model(tied=True), tmp_path / "b", options=narrow):
            pass


async def test_untold_things_are_refused_before_a_server_is_asked(tmp_path: Path) -> None:
    engine = VllmServers([server(model(tied=True), tmp_path)])
    for untold in (
        request(1, entropies=True),
        request(1, sampling=Sampling(temperature=0.005)),
        request(1, sampling=Sampling(temperature=2.5)),
    ):
        with pytest.raises(ValueError, match=r"engine\.vllm\.sampler: agentrl"):
            await engine.generate(untold)
