"""Admission: never more than allowed, in the order of arrival, and nothing is lost on the way.

Time is virtual: a loop whose clock jumps to the next timer instead of sleeping.

Mutants seen caught, 26 in all, among them: a bucket one token deeper, or that fills while it is
full; a valve without hysteresis; a newcomer who overtakes; last come, first served; what a
cancelled one had is lost, or goes to nobody; a timer that is not set; `>=` to `>` for places and
slots; a place kept after a refused start; a place released twice; a deadline of its own for every
line; forks that pay tokens; memory that is not promised.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import Pressure
from agentrl_sandbox.admission import PoolAdmission
from agentrl_sandbox.admission_queue import NEVER_BY_ITSELF, AdmissionQueue
from agentrl_sandbox.pressure import (
    READ_EVERY_S,
    START_BYTES,
    MemoryReading,
    MemoryValve,
    TokenBucket,
)

MIB = 2**20
PLENTY = 2**40


class Jumping(selectors.DefaultSelector):
    """Does not wait: it moves the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        assert found or timeout is not None, "everybody waits for somebody else"
        if not found and timeout:
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs as fast as it can, in a time of its own."""

    def __init__(self) -> None:
        self.clock = Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


def admission(memory: Callable[[], int] = lambda: PLENTY, **settings: Any) -> PoolAdmission:
    clock = asyncio.get_running_loop().time
    return PoolAdmission(Pressure(**settings), memory=MemoryReading(memory), clock=clock)


# -- rules ------------------------------------------------------------------------------------

GAPS = st.lists(st.floats(0, 2), min_size=1, max_size=60)


@given(GAPS, st.floats(0.1, 50), st.integers(1, 8))
def test_a_bucket_holds_over_any_window(gaps: list[float], per_s: float, burst: int) -> None:
    bucket, now_s = TokenBucket(per_s=per_s, burst=burst), 0.0
    taken: list[float] = []
    for gap_s in gaps:
        now_s += gap_s
        if bucket.wait_s(now_s) == 0:
            bucket.take(now_s)
            taken.append(now_s)
    assert within(taken, per_s, burst)


def within(taken: list[float], per_s: float, burst: int) -> bool:
    """Return whether every window from one start to another keeps to the bucket."""
    return all(
        last - first + 1 <= burst + per_s * (taken[last] - taken[first]) + 1e-6
        for first in range(len(taken))
        for last in range(first, len(taken))
    )


@given(st.floats(0.1, 50), st.integers(1, 8), st.floats(0, 1000))
def test_a_full_bucket_gives_its_burst_and_then_one_by_one(
    per_s: float, burst: int, now_s: float
) -> None:
    bucket = TokenBucket(per_s=per_s, burst=burst)
    for _ in range(burst):
        assert bucket.wait_s(now_s) <= 1e-9 * max(1, now_s)
        bucket.take(now_s)
    assert bucket.wait_s(now_s) == pytest.approx(1 / per_s, abs=1e-9 * max(1, now_s))
    bucket.give_back()
    assert bucket.wait_s(now_s) <= 1e-9 * max(1, now_s)


def test_a_valve_opens_later_than_it_shuts() -> None:
    valve = MemoryValve(100)
    seen = [valve.is_open(bytes_) for bytes_ in (101, 100, 99, 100, 124, 125, 100, 99, 125)]
    assert seen == [True, True, False, False, False, True, True, False, True]
    big = MemoryValve(2**40)
    assert not big.is_open(2**40 - 1)
    assert not big.is_open(2**40 + 256 * MIB - 1)
    assert big.is_open(2**40 + 256 * MIB)


def test_memory_is_read_now_and_then_and_promises_count_meanwhile() -> None:
    readings = iter([100 * MIB, 50 * MIB])
    memory = MemoryReading(lambda: next(readings))
    assert memory.available_bytes(7) == 100 * MIB
    memory.take()
    assert memory.available_bytes(7 + READ_EVERY_S / 2) == 100 * MIB - START_BYTES
    assert memory.available_bytes(7 + READ_EVERY_S * 1.01) == 50 * MIB


WRONG: list[tuple[str, Any]] = [
    ("sessions", 0),
    ("cells", 0),
    ("start_burst", 0),
    ("starts_per_s", 0.0),
    ("starts_per_s", float("nan")),
    ("free_memory_bytes", -1),
    ("wait_s", -1.0),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_settings_under_which_nothing_could_start_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"sandbox\.pressure\.{name} is .* must be"):
        PoolAdmission(Pressure(**{name: value}))


# -- any order of opening, forking, closing, cancelling ----------------------------------------


@dataclass
class Guest:
    """Somebody who wants a place, and what came of it."""

    kind: str
    task: asyncio.Task[ExitStack]
    got_s: float | None = None
    place: ExitStack | None = None
    cancelled: bool = False


@dataclass
class House:
    """Runs a script against an admission and checks it at every step."""

    admission: PoolAdmission
    sessions: int
    guests: list[Guest] = field(default_factory=list[Guest])
    order: list[Guest] = field(default_factory=list[Guest])

    def come(self, kind: str) -> None:
        enter = self.admission.session if kind == "open" else self.admission.fork

        async def enter_it() -> ExitStack:
            place = await enter()
            self.order.append(guest)
            guest.got_s, guest.place = asyncio.get_running_loop().time(), place
            self.check()
            return place

        guest = Guest(kind, asyncio.create_task(enter_it()))
        self.guests.append(guest)

    def leave(self, number: int) -> None:
        inside = [guest for guest in self.guests if guest.place is not None]
        if inside:
            guest = inside[number % len(inside)]
            assert guest.place is not None
            guest.place.close()
            guest.place.close()
            guest.place = None

    def cancel(self, number: int) -> None:
        pending = [guest for guest in self.guests if not guest.task.done()]
        if pending:
            guest = pending[number % len(pending)]
            guest.cancelled = guest.task.cancel()

    def check(self) -> None:
        inside = sum(guest.place is not None for guest in self.guests)
        assert inside <= self.admission.figures()["live"] <= self.sessions


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "fork", "leave", "leave", "cancel", "wait", "tick"]),
        st.integers(0, 50),
    ),
    max_size=80,
)


LET_ON_AND_NOT_THERE_YET = [("open", 0)] * 4 + [("wait", 0), ("open", 0), ("leave", 0)]


@example(LET_ON_AND_NOT_THERE_YET, 3, 0.5, 2)
@given(STEPS, st.integers(1, 4), st.sampled_from([0.5, 3.0, 100.0]), st.integers(1, 3))
def test_whatever_happens_the_bounds_hold_and_nothing_is_lost(
    steps: list[tuple[str, int]], sessions: int, per_s: float, burst: int
) -> None:
    async def work() -> None:
        gate = admission(sessions=sessions, starts_per_s=per_s, start_burst=burst, wait_s=1000.0)
        house = House(gate, sessions)
        for what, number in steps:
            if what in ("open", "fork"):
                house.come(what)
            elif what == "leave":
                house.leave(number)
            elif what == "cancel":
                house.cancel(number)
            else:
                await asyncio.sleep(number / 10 if what == "wait" else 0)
            house.check()
        # Now everybody who has a place leaves: all who wait and are not cancelled get in.
        while not all(guest.task.done() for guest in house.guests) or gate.figures()["live"]:
            house.leave(0)
            await asyncio.sleep(1)
            house.check()
        assert all(guest.got_s is not None for guest in house.guests if not guest.cancelled)
        opened = [guest for guest in house.order if guest.kind == "open"]
        forked = [guest for guest in house.order if guest.kind == "fork"]
        assert opened == [guest for guest in house.guests if guest in opened]
        assert forked == [guest for guest in house.guests if guest in forked]
        assert within(sorted(guest.got_s or 0.0 for guest in opened), per_s, burst)
        figures = gate.figures()
        assert (figures["live"], figures["waiting"]) == (0, 0)

    run(work)


@given(STEPS, st.integers(1, 3))
def test_cells_never_run_more_than_allowed_and_all_run(
    steps: list[tuple[str, int]], cells: int
) -> None:
    async def work() -> None:
        gate = admission(cells=cells)
        running, most, ran = 0, 0, 0

        async def cell(length_s: float) -> None:
            nonlocal running, most, ran
            async with gate.cell():
                running += 1
                most = max(most, running)
                try:
                    await asyncio.sleep(length_s)
                    ran += 1
                finally:
                    running -= 1

        tasks: list[asyncio.Task[None]] = []
        for what, number in steps:
            if what in ("open", "fork"):
                tasks.append(asyncio.create_task(cell(number / 100)))
            elif what == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            else:
                await asyncio.sleep(number / 1000)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= cells
        assert ran == sum(not task.cancelled() for task in tasks)
        assert (gate.figures()["running"], gate.figures()["waiting_cells"]) == (0, 0)

    run(work)


# -- golden cases -----------------------------------------------------------------------------


def test_places_go_to_whoever_came_first_and_a_cancelled_one_passes_it_on() -> None:
    async def work() -> None:
        gate = admission(sessions=1)
        first = await gate.session()
        second, third = (asyncio.create_task(gate.session()) for _ in range(2))
        await asyncio.sleep(0)
        assert gate.figures()["waiting"] == 2
        first.close()
        second.cancel()  # it has the place already, and never hears of it
        place = await third
        with pytest.raises(asyncio.CancelledError):
            await second
        assert gate.figures()["live"] == 1
        place.close()
        assert gate.figures()["live"] == 0

    run(work)


def test_what_a_cancelled_one_had_goes_to_the_next_in_line() -> None:
    async def work() -> None:
        tokens: list[int] = []

        def rule() -> float:
            return 0.0 if tokens and tokens.pop() else NEVER_BY_ITSELF

        turnstile = AdmissionQueue(rule, lambda: tokens.append(1), lambda: "too late")
        first, second = (asyncio.create_task(turnstile.wait(9.0)) for _ in range(2))
        await asyncio.sleep(0)
        tokens.append(1)
        turnstile.pump()
        first.cancel()
        await second
        assert asyncio.get_running_loop().time() == 0
        assert tokens == []

    run(work)


def test_a_start_cancelled_at_the_last_moment_costs_no_token_either() -> None:
    async def work() -> None:
        gate, loop = admission(starts_per_s=1.0, start_burst=1), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await gate.session()
        second = asyncio.create_task(gate.session())
        await asyncio.sleep(0)
        loop.clock.now_s += 1.0
        third = asyncio.create_task(gate.session())  # the second one gets its turn before it waits
        loop.call_soon(second.cancel)
        await third
        assert loop.time() == pytest.approx(1.0)
        assert second.cancelled()
        assert gate.figures()["live"] == 2

    run(work)


def test_whoever_is_cancelled_does_not_count_as_waiting() -> None:
    async def work() -> None:
        gate = admission(sessions=1)
        held = await gate.session()
        tasks = [asyncio.create_task(gate.session()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert gate.figures()["waiting"] == 2
        for task, place in ((tasks[0], held), (tasks[2], None)):
            (place or await tasks[0]).close()
            await task
        assert gate.figures()["live"] == 1

    run(work)


def test_nobody_overtakes_when_the_loop_is_late() -> None:
    async def work() -> None:
        gate, order = admission(starts_per_s=1.0, start_burst=1), list[str]()

        async def enter(name: str) -> None:
            await gate.session()
            order.append(name)

        await enter("first")
        second = asyncio.create_task(enter("second"))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.clock.now_s += 1.5  # there is a token, and the timer has not gone off yet
        await enter("third")
        await second
        assert order == ["first", "second", "third"]

    run(work)


def test_starts_keep_to_the_bucket_and_forks_do_not_wait_for_it() -> None:
    async def work() -> None:
        gate, loop = admission(starts_per_s=2.0, start_burst=3), asyncio.get_running_loop()
        tasks = [asyncio.create_task(timed(gate.session)) for _ in range(6)]
        await asyncio.sleep(0)
        await gate.fork()
        assert loop.time() == 0
        assert await asyncio.gather(*tasks) == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])
        assert gate.figures()["waits"] == 3
        assert gate.figures()["waited_s"] == pytest.approx(3.0)
        assert gate.figures()["longest_wait_s"] == pytest.approx(1.5)

    async def timed(enter: Callable[[], Coroutine[Any, Any, ExitStack]]) -> float:
        await enter()
        return asyncio.get_running_loop().time()

    run(work)


def test_a_thousand_at_once_get_through_a_few_at_a_time() -> None:
    async def work() -> None:
        gate, loop = admission(sessions=64), asyncio.get_running_loop()
        most = 0.0

        async def live() -> None:
            nonlocal most
            place = await gate.session()
            most = max(most, gate.figures()["live"])
            await asyncio.sleep(0.1)
            place.close()

        await asyncio.gather(*(live() for _ in range(1000)))
        assert most <= 64
        assert loop.time() >= (1000 - 64) / 200, "starts_per_s, after start_burst"
        assert (gate.figures()["live"], gate.figures()["waiting"]) == (0, 0)

    run(work)


def test_a_start_that_was_cancelled_costs_no_token() -> None:
    async def work() -> None:
        gate = admission(starts_per_s=1.0, start_burst=1)
        await gate.session()
        second, third = (asyncio.create_task(gate.session()) for _ in range(2))
        await asyncio.sleep(0.5)
        second.cancel()
        await third
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)

    run(work)


def test_a_fork_that_finds_no_place_ends_with_an_error_that_names_the_setting() -> None:
    """Two holders who both want a copy would wait for each other."""

    async def work() -> None:
        gate = admission(sessions=2, wait_s=3.0)
        holders = [await gate.session(), await gate.session()]

        async def hold_and_fork(held: ExitStack, after_s: float) -> str:
            await asyncio.sleep(after_s)
            try:
                (await gate.fork()).close()
            except SandboxError as error:
                return str(error)
            finally:
                held.close()
            return "copied"

        ended = await asyncio.gather(*map(hold_and_fork, holders, (0.0, 0.5)))
        assert "2 of 2 sessions are live" in ended[0]
        assert "sandbox.pressure.sessions" in ended[0]
        assert "wait_s=3" in ended[0]
        assert ended[1] == "copied"
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert gate.figures()["live"] == 0

    run(work)


def test_the_deadline_is_one_for_the_whole_way() -> None:
    async def work() -> None:
        gate = admission(sessions=1, starts_per_s=0.1, start_burst=1, wait_s=5.0)
        first = await gate.session()
        asyncio.get_running_loop().call_later(4.0, first.close)
        with pytest.raises(
            SandboxError, match=r"no permission .* sandbox\.pressure\.starts_per_s=0\.1"
        ):
            await gate.session()
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)
        assert gate.figures()["live"] == 0, "the place it had meanwhile"

    run(work)


def test_nothing_starts_while_memory_is_short() -> None:
    async def work() -> None:
        free = [99 * MIB]
        gate = admission(lambda: free[0], free_memory_bytes=100 * MIB, wait_s=5.0)
        opening, copying = (asyncio.create_task(f()) for f in (gate.session, gate.fork))
        await asyncio.sleep(1)
        assert (gate.figures()["waiting"], gate.figures()["short_of_memory"]) == (2, 1)
        free[0] = 110 * MIB  # enough to go on, and not enough to begin again
        await asyncio.sleep(1)
        assert not opening.done()
        free[0] = 125 * MIB
        await asyncio.gather(opening, copying)
        assert asyncio.get_running_loop().time() < 2.2
        free[0] = 99 * MIB
        await asyncio.sleep(1)
        with pytest.raises(SandboxError, match=r"99 MiB are available, but 100 MiB must stay free"):
            await gate.session()
        assert gate.figures()["live"] == 2

    run(work)


def test_a_burst_does_not_trust_one_reading() -> None:
    """Pools of one process share the reading, and what the other one has just promised."""

    async def work() -> None:
        memory = MemoryReading(lambda: 100 * MIB + 2 * START_BYTES)
        pressure = Pressure(free_memory_bytes=100 * MIB, wait_s=0.0)
        clock = asyncio.get_running_loop().time
        one, other = (PoolAdmission(pressure, memory=memory, clock=clock) for _ in range(2))
        for gate in (one, other, one):
            await gate.session()
        with pytest.raises(SandboxError, match="memory"):
            await other.session()

    run(work)


def test_closing_turns_everybody_away() -> None:
    async def work() -> None:
        gate = admission(sessions=1, cells=1)
        await gate.session()
        waiting = asyncio.create_task(gate.session())
        async with gate.cell():
            cell = asyncio.create_task(gate.cell().__aenter__())
            await asyncio.sleep(0)
            gate.close("the pool is closed")
            ended = await asyncio.gather(waiting, cell, return_exceptions=True)
        assert [str(error) for error in ended] == ["the pool is closed"] * 2
        with pytest.raises(SandboxError, match="closed"):
            await gate.session()

    run(work)


def test_a_cell_that_finds_no_slot_says_so() -> None:
    async def work() -> None:
        gate = admission(cells=1, wait_s=2.0)
        async with gate.cell():
            with pytest.raises(
                SandboxError, match=r"1 cells are running .* sandbox\.pressure\.cells=1"
            ):
                async with gate.cell():
                    pass
        async with gate.cell():
            assert gate.figures()["running"] == 1

    run(work)


async def test_on_a_real_clock_nobody_is_let_in_early() -> None:
    gate = PoolAdmission(
        Pressure(starts_per_s=50.0, start_burst=1), memory=MemoryReading(lambda: PLENTY)
    )
    began_s = time.monotonic()
    await asyncio.gather(*(gate.session() for _ in range(6)))
    assert time.monotonic() - began_s >= 5 / 50
