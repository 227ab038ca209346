"""Callers cancelled at every step: nothing runs on, no engine stays paused, no world stays open.

Mutants seen caught: calls to engines in a bare `gather`; a pause that failed or was cancelled and
is not taken back; one that is not taken back because another engine did not resume; the gate's
pause outside of its `try`; a hold that was cancelled and leaves the gate shut; worlds closed one
after the other, so that a cancelled close leaves the later ones open; a gate whose close can be
cancelled; an episode that is cancelled while it closes its environment, and does not begin again;
trajectories that a loop ended, told as cancelled ones.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from agentrl.engine.router import EngineRouter
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError
from agentrl.events.kinds import Event, RolloutAbandoned, RolloutFinished
from agentrl.events.state import RunState
from agentrl.rollout.branching.fixed_topologies import TreeGrpoTopology
from agentrl.rollout.branching.forks import TreeGrowth
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.trajectory import Failed
from tests.unit.rollout.branching.test_gated import Rig, sync
from tests.unit.rollout.branching.test_grow import TASK, Counting, always, spoken


async def cancel_at_every_step(attempt: Callable[[], Awaitable[Any]]) -> int:
    """Begin `attempt` again and again, cancelled one round of the loop later each time.

    Return how many rounds the first took that ended before it was cancelled.
    """
    return await first(lambda rounds: cancel_after(rounds, attempt()))


async def first(attempt: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first number for which `attempt` is true; what never began has nothing to end."""
    for rounds in count(1):
        if await attempt(rounds):
            return rounds
    raise AssertionError


async def cancel_after(rounds: int, attempt: Awaitable[Any]) -> bool:
    """Cancel after so many rounds of the loop; return whether it had ended by then."""
    task = asyncio.ensure_future(attempt)
    for _ in range(rounds):
        await asyncio.sleep(0)
    has_ended = task.done()
    task.cancel()
    await asyncio.wait([task])
    assert has_ended or task.cancelled(), "a cancelled caller hears that it was cancelled"
    return has_ended


async def check_nothing_runs() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Slow(ScriptedEngine):
    """Takes some rounds of the loop over everything; fails at the call named `breaks_at`."""

    def __init__(self, rounds: int, *, breaks_at: str = "") -> None:
        super().__init__(spoken)
        self.rounds, self.breaks_at = rounds, breaks_at
        self.is_paused = self.is_busy = False

    async def pause(self) -> None:
        await self._take("pause")
        await super().pause()
        self.is_paused = True
        await self._take("paused")

    async def resume(self) -> None:
        await self._take("resume")
        await super().resume()
        self.is_paused = False

    async def load(self, weights: Any, version: int) -> None:
        await self._take("load")
        await super().load(weights, version)

    async def _take(self, call: str) -> None:
        self.is_busy = True
        try:
            for _ in range(self.rounds):
                await asyncio.sleep(0)
            if self.breaks_at == call:
                raise EngineError(f"broken at {call}")
        finally:
            self.is_busy = False


async def test_a_cancelled_call_of_several_engines_leaves_nothing_running_or_paused() -> None:
    engines = [Slow(rounds) for rounds in (1, 4, 2)]
    router = EngineRouter(engines)

    async def check(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except asyncio.CancelledError:
            assert not any(engine.is_busy or engine.is_paused for engine in engines)
            raise
        await router.resume()

    assert await cancel_at_every_step(lambda: check(router.pause)) > 8
    assert await cancel_at_every_step(lambda: check(lambda: router.load({}, 1))) > 4
    await check_nothing_runs()


@pytest.mark.parametrize("call", ["pause", "paused", "load"])
async def test_one_engine_that_breaks_ends_the_calls_of_the_others(call: str) -> None:
    engines = [Slow(0), Slow(2, breaks_at=call), Slow(50)]
    router = EngineRouter(engines)
    with pytest.raises(EngineError, match=f"broken at {call}"):
        await (router.load({}, 1) if call == "load" else router.pause())
    assert not any(engine.is_busy or engine.is_paused for engine in engines)
    await check_nothing_runs()


async def test_what_kept_engines_from_pausing_is_told_and_not_that_one_did_not_resume() -> None:
    class BreaksTwice(Slow):
        async def resume(self) -> None:
            raise EngineError("cannot resume")

    engines = [Slow(3), BreaksTwice(0, breaks_at="paused")]
    with pytest.raises(EngineError, match="broken at paused"):
        await EngineRouter(engines).pause()
    assert not engines[0].is_paused


class Lingering(Counting):
    """Takes some rounds of the loop to close."""

    async def close(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().close()


def partial_rig(engine: Slow) -> Rig:
    """Return a rig whose gate closes on requests in flight."""
    return Rig(
        TreeGrpoTopology(trees=2, rounds=1, width=2),
        sync(4, groups_per_step=1, mode="partial", over_provision=2.0),
        env=Lingering,
        make_engine=lambda: engine,
    )


async def test_a_batch_cancelled_at_any_step_leaves_no_world_open_and_no_engine_paused() -> None:
    async def attempt() -> None:
        engine = Slow(2)
        rig = partial_rig(engine)
        gate = rig.gate()
        try:
            await gate.next_batch()
        finally:
            assert not engine.is_paused
            assert not engine.is_busy
            await gate.close()
            assert rig.open == 0

    assert await cancel_at_every_step(attempt) > 20
    await check_nothing_runs()


class FailureRecorder:
    """Keeps the failures that events tell of."""

    def __init__(self) -> None:
        self.failures: list[object] = []

    def on_event(self, event: Event, state: RunState) -> None:
        match event:
            case RolloutFinished(leaf=leaf) if isinstance(leaf.outcome, Failed):
                self.failures.append(leaf.outcome)
            case RolloutAbandoned(failure=failure) if failure is not None:
                self.failures.append(failure)
            case _:
                pass


def test_a_loop_that_ends_at_any_step_fails_no_trajectory() -> None:
    """As a second Ctrl-C does it: a resume plays them on, and trains no group without them."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def attempt(rounds: int, heard: FailureRecorder) -> bool:
        rig = partial_rig(Slow(2))
        async with rig.gate() as gate:
            gate.events.subscribe(heard)
            batch = asyncio.create_task(gate.next_batch())
            for _ in range(rounds):
                await asyncio.sleep(0)
            if batch.done():
                return True
            asyncio.get_running_loop().call_soon(interrupt)
            await batch
        return False

    rounds, ended = 0, False
    while not ended:
        rounds, heard = rounds + 1, FailureRecorder()
        try:
            ended = asyncio.run(attempt(rounds, heard))
        except KeyboardInterrupt:
            assert heard.failures == []
    assert rounds > 20


async def test_a_gate_whose_close_is_cancelled_at_any_step_closes_everything() -> None:
    async def attempt(rounds: int) -> bool:
        rig = partial_rig(Slow(0))
        gate = rig.gate()
        await gate.next_batch()
        assert rig.open
        ended = await cancel_after(rounds, gate.close())
        assert rig.open == 0
        await check_nothing_runs()
        return ended

    assert await first(attempt) > 2


async def test_a_hold_that_is_cancelled_at_any_step_leaves_the_gate_open() -> None:
    async def hold(gate: RolloutScheduler) -> None:
        async with gate.paused():
            await asyncio.sleep(0)

    async def attempt(rounds: int) -> bool:
        engine = Slow(2)
        rig = Rig(always(4), replace(sync(4), mode="async"), make_engine=lambda: engine)
        async with rig.gate() as gate:
            batch = asyncio.create_task(gate.next_batch())
            for _ in range(4):
                await asyncio.sleep(0)
            ended = await cancel_after(rounds, hold(gate))
            assert not engine.is_paused
            async with asyncio.timeout(5):
                await gate.pass_gate()
            await batch
        return ended

    assert await first(attempt) > 2
    await check_nothing_runs()


async def test_an_engine_that_does_not_pause_is_told_and_not_that_it_does_not_resume() -> None:
    class BreaksTwice(Slow):
        async def resume(self) -> None:
            raise EngineError("cannot resume")

    rig = partial_rig(BreaksTwice(0, breaks_at="pause"))
    async with rig.gate() as gate:
        with pytest.raises(EngineError, match="broken at pause"):
            await gate.next_batch()


class SlowWorld(Counting):
    """Takes some rounds of the loop to close, and may cancel itself over it."""

    def __init__(self, rounds: int, *, cancels: bool = False) -> None:
        super().__init__()
        self.is_open, self.rounds, self.cancels = True, rounds, cancels

    async def close(self) -> None:
        for _ in range(self.rounds):
            await asyncio.sleep(0)
        if self.cancels:
            raise asyncio.CancelledError
        await super().close()


async def test_worlds_are_closed_whoever_is_cancelled_over_it() -> None:
    growing = TreeGrowth(topology=always(4), task=TASK, seed=0, make_env=Counting)

    async def attempt(rounds: int) -> bool:
        worlds = [SlowWorld(2), SlowWorld(1, cancels=True), SlowWorld(4), SlowWorld(0)]
        ended = await cancel_after(rounds, growing.close(worlds))
        assert [world.is_open for world in worlds] == [False, True, False, False]
        assert bool(growing.unclosed) == ended
        return ended

    assert await first(attempt) > 4
    await check_nothing_runs()
