"""Engines in processes of their own: the contract, a death in mid-request, a replacement.

A process takes seconds to start, so that a test here does several things with one.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import EngineReplicas, ProcessEngine
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import GenerateRequest
from agentrl.testing.engine import check_engine
from tests.conftest import child_commands
from tests.support.engine_models import VOCABULARY, prompt_of, recipe_in, shared, tiny

CONTEXT_TOKENS = 1024
DEADLINE_S = 200.0


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    model = shared("qwen3")
    folder = tmp_path_factory.mktemp("policy")
    return recipe_in(folder, model, context_tokens=CONTEXT_TOKENS)


@pytest.fixture(autouse=True)
def no_engine_is_left() -> Iterator[None]:
    yield
    assert not [line for line in child_commands() if "agentrl.engine.remote" in line]


def request(number: int, tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(
        id=f"a/{number}/0/0", prompt=prompt_of(20, number), max_new_tokens=tokens, seed=number
    )


def environ_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def kill(engine: ProcessEngine) -> int:
    """End an engine's process as a machine short of memory would."""
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    return engine.pid


async def test_the_contract_holds_and_tokens_are_the_same(recipe: EngineSpec) -> None:
    weights = tiny("qwen3", 1).state_dict()
    async with asyncio.timeout(DEADLINE_S):
        engine = ProcessEngine(recipe)
        async with (
            LocalEngine(shared("qwen3"), slots=4, context_tokens=CONTEXT_TOKENS) as local,
            engine,
        ):
            assert (await engine.generate(request(0, 30))).logprobs == (
                await local.generate(request(0, 30))
            ).logprobs
            await check_engine(
                engine, vocab_size=VOCABULARY, context_tokens=CONTEXT_TOKENS, weights=weights
            )


async def test_a_process_sees_the_devices_it_was_given(recipe: EngineSpec) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        ProcessEngine(replace(recipe, cuda_devices="3")) as engine,
    ):
        await engine.generate(request(0))
        assert engine.pid is not None
        environ = environ_of(engine.pid)
    assert b"CUDA_VISIBLE_DEVICES=3" in environ


async def test_a_dead_process_fails_its_requests_and_is_replaced(recipe: EngineSpec) -> None:
    other = tiny("qwen3", 1)
    async with asyncio.timeout(DEADLINE_S), ProcessEngine(recipe, max_restarts=2) as engine:
        await engine.load(other.state_dict(), 5)
        told = await engine.generate(request(1))
        running = asyncio.create_task(engine.generate(request(2, 900)))
        await asyncio.sleep(0)
        first = kill(engine)
        with pytest.raises(EngineLost, match=f"process {first} is gone"):
            await running
        # Whoever asks next waits for the replacement, which has the newest weights.
        again = await asyncio.gather(*(engine.generate(request(1)) for _ in (1,)))
        assert engine.pid != first
        assert again == [told]
        assert set(told.versions) == {5}
        # One that dies while it loads is replaced by one that begins with what was to be loaded.
        kill(engine)
        await engine.load(shared("qwen3").state_dict(), 6)
        async with LocalEngine(
            shared("qwen3"), slots=1, context_tokens=CONTEXT_TOKENS, version=6
        ) as local:
            assert await engine.generate(request(3)) == await local.generate(request(3))
        kill(engine)
        with pytest.raises(EngineError):
            await engine.generate(request(4, 900))
        with pytest.raises(EngineError, match="not restarted any more"):
            await engine.generate(request(4))


async def test_a_replacement_is_paused_as_the_one_before(recipe: EngineSpec) -> None:
    async with asyncio.timeout(DEADLINE_S), ProcessEngine(recipe) as engine:
        await engine.pause()
        first = kill(engine)
        with pytest.raises(EngineError):
            await engine.generate(request(0))
        waiting = asyncio.create_task(engine.generate(request(0)))
        while engine.pid in (None, first):  # noqa: ASYNC110 - there is nothing else to wait on
            await asyncio.sleep(0.01)
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await engine.resume()
        assert len((await waiting).token_ids) == 8


async def test_of_two_one_dies_and_the_other_goes_on(recipe: EngineSpec) -> None:
    engines = [ProcessEngine(recipe), ProcessEngine(recipe)]
    async with asyncio.timeout(DEADLINE_S), EngineReplicas(engines) as both:
        await both.load(tiny("qwen3", 1).state_dict(), 1)
        running = [asyncio.create_task(both.generate(request(n, 900))) for n in range(2)]
        await asyncio.sleep(0)
        assert min(both.loads) > 0
        kill(engines[0])
        ends = await asyncio.gather(*running, return_exceptions=True)
        failed = [end for end in ends if isinstance(end, EngineError)]
        assert len(failed) == 1
        # Tried again, the failed one goes to the other engine, and needs no replacement.
        index = [isinstance(end, EngineError) for end in ends].index(True)
        again = await both.generate(request(index))
        assert set(again.versions) == {1}
        assert both.loads == (0, 0)


async def test_what_cannot_be_made_says_why(recipe: EngineSpec) -> None:
    with pytest.raises(ConfigError, match=r"/no/python cannot be started.*engine\.python"):
        async with ProcessEngine(recipe, python="/no/python"):
            pass
    with pytest.raises(ConfigError, match=r"docs/vllm\.md"):
        async with ProcessEngine(replace(recipe, kind="vllm")):
            pass
    with pytest.raises(ConfigError, match="no-such-folder"):
        async with ProcessEngine(replace(recipe, folder="/no-such-folder")):
            pass


OWNER = """
import asyncio, os, sys
from agentrl.engine.spec import EngineSpec
from agentrl.engine.remote import ProcessEngine

async def main():
    engine = ProcessEngine(EngineSpec.from_json(sys.argv[1]))
    await engine.__aenter__()
    print(engine.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_it_ends_with_its_owner_however_that_ends(recipe: EngineSpec, root: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OWNER, recipe.to_json()],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    descriptor = None
    try:
        descriptor = os.pidfd_open(int(ran.stdout))
    except ProcessLookupError:
        return  # it has ended already
    ended, _, _ = select.select([descriptor], [], [], DEADLINE_S)
    os.close(descriptor)
    assert ended
