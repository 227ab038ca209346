"""Long forward passes of the local engine run in a thread, and nothing changes under them.

Mutants seen caught: a pass that stays on the event loop; a load that does not wait, or waits for
ever, or is made although its caller is gone; an error of a load that is lost; changes that wait
although no pass is under way; a pause that returns during a pass; a cancelled step that leaves its
pass behind.
"""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engine import local
from agentrl.engine.local import LocalEngine
from agentrl.policy import GenerateRequest
from tests.support.engine_models import prompt_of, requests, shared, tiny

WAIT_S = 20.0
REQUEST = GenerateRequest(id="1", prompt=(5, 6, 7), max_new_tokens=200)


@pytest.fixture(autouse=True)
def always_in_a_thread(never_in_a_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "THREAD_S", -1.0)


class HeldPasses:
    """Forward passes of an engine that wait, from a given one on, until they are let go."""

    def __init__(self, engine: LocalEngine, *, free: int = 0) -> None:
        self.begun = asyncio.Event()
        self._go = threading.Event()
        self._free = free
        self._loop = asyncio.get_running_loop()
        decoder: Any = engine._decoder  # pyright: ignore[reportPrivateUsage]
        forward = decoder.forward

        def hold(segments: Any) -> Any:
            self._free -= 1
            if self._free < 0 and not self._go.is_set():
                self._loop.call_soon_threadsafe(self.begun.set)
                assert self._go.wait(WAIT_S), "nobody let the pass go: the event loop stands still"
            return forward(segments)

        decoder.forward = hold

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine(shared("qwen3"), slots=2, context_tokens=256, version=7)


async def test_tokens_are_the_same_as_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(16)
    found: list[Any] = []
    for limit_s in (-1.0, 1e9):
        monkeypatch.setattr(local, "THREAD_S", limit_s)
        async with LocalEngine(shared("qwen3"), slots=4, context_tokens=256) as engine:
            found.append(await asyncio.gather(*map(engine.generate, asked)))
    assert [(d.token_ids, d.logprobs) for d in found[0]] == [
        (d.token_ids, d.logprobs) for d in found[1]
    ]


async def test_the_event_loop_runs_during_a_pass(engine: LocalEngine) -> None:
    async with engine:
        held = HeldPasses(engine)
        running = asyncio.create_task(engine.generate(replace(REQUEST, max_new_tokens=3)))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        assert engine.statistics().running == 1
        held.let_go()
        assert len((await running).token_ids) == 3


async def test_a_load_waits_for_the_end_of_a_step(engine: LocalEngine) -> None:
    new = tiny("qwen3", seed=1)
    request = replace(REQUEST, prompt=prompt_of(40), max_new_tokens=20)
    async with engine:
        held = HeldPasses(engine, free=5)
        running = asyncio.create_task(engine.generate(request))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        loading = asyncio.create_task(engine.load(dict(new.state_dict()), version=8))
        await asyncio.sleep(0.05)
        assert (engine.version, loading.done()) == (7, False)
        held.let_go()
        await loading
        assert engine.version == 8
        done = await running
        await asyncio.wait_for(engine.load(dict(new.state_dict()), version=9), WAIT_S)
    at = done.versions.index(8)
    assert at == 6
    async with LocalEngine(new, slots=1, context_tokens=256) as fresh:
        begun = replace(
            request, prompt=request.prompt + done.token_ids[:at], max_new_tokens=20 - at
        )
        assert (await fresh.generate(begun)).token_ids == done.token_ids[at:]


async def test_a_load_whose_caller_is_gone_changes_nothing(engine: LocalEngine) -> None:
    async with engine:
        held = HeldPasses(engine)
        running = asyncio.create_task(engine.generate(replace(REQUEST, max_new_tokens=9)))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        state = dict(tiny("qwen3", seed=1).state_dict())
        loading = asyncio.create_task(engine.load(state, version=8))
        await asyncio.sleep(0)
        loading.cancel()
        held.let_go()
        assert set((await running).versions) == {7}
        assert engine.version == 7


async def test_a_load_of_other_weights_fails_its_caller_alone(engine: LocalEngine) -> None:
    async with engine:
        held = HeldPasses(engine)
        running = asyncio.create_task(engine.generate(replace(REQUEST, max_new_tokens=9)))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        loading = asyncio.create_task(engine.load({}, version=8))
        await asyncio.sleep(0)
        held.let_go()
        with pytest.raises(ValueError, match="no '"):
            await loading
        assert set((await running).versions) == {7}


async def test_who_leaves_during_a_pass_is_answered_with_what_it_has(engine: LocalEngine) -> None:
    async with engine:
        held = HeldPasses(engine, free=5)
        running = asyncio.create_task(engine.generate(REQUEST))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        await engine.abort("1")
        done = await asyncio.wait_for(running, WAIT_S)
        assert (done.finish, len(done.token_ids)) == ("aborted", 5)
        # Its slot is free, and what the pass still computes for it is nobody's.
        again = asyncio.create_task(engine.generate(replace(REQUEST, max_new_tokens=20)))
        await asyncio.sleep(0)
        held.let_go()
        assert (await again).token_ids[:5] == done.token_ids


async def test_a_pause_and_a_close_return_after_the_pass(engine: LocalEngine) -> None:
    held = HeldPasses(engine)
    running = asyncio.create_task(engine.generate(REQUEST))
    await asyncio.wait_for(held.begun.wait(), WAIT_S)
    pausing = asyncio.create_task(engine.pause())
    assert (await asyncio.wait_for(running, WAIT_S)).finish == "aborted"
    assert not pausing.done()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    held.let_go()
    await asyncio.gather(pausing, closing)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_cancelled_program_waits_for_the_pass(engine: LocalEngine) -> None:
    """The next event loop finds an engine whose cache nobody writes to."""
    alone = asyncio.run(engine.generate(replace(REQUEST, max_new_tokens=20)))

    async def begin() -> None:
        held = HeldPasses(engine, free=3)
        asyncio.get_running_loop().call_later(0.2, held.let_go)
        running = asyncio.create_task(engine.generate(REQUEST))
        await asyncio.wait_for(held.begun.wait(), WAIT_S)
        assert not running.done()

    asyncio.run(begin())
    again = asyncio.run(engine.generate(replace(REQUEST, max_new_tokens=20)))
    assert again.token_ids == alone.token_ids
