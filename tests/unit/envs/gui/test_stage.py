"""Desktops set ahead for the next episodes: which ones, for whom, and never too many.

The pool's decisions are checked on desktops that only take their time; `gui_play.py` has what a
real one looks like, for every kind of task.

Mutants seen caught: what was taken still expected; no waiting for what is being set, or not heard
of its end; more set than `staged`; those starting not counted, or one too many; a lost one counted
for ever, or never ended; what is wanted first given up first; the same set twice; what does not
rest kept, or tried again; a place not returned; nothing set when a desktop comes back or has
started; the unwanted kept, or new ones started beside it; one that has changed taken; a pool closed
around one that starts; nothing set as a stage; copies counted once.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import EnvError
from agentrl_envs.gui.desktop import BARE, DesktopPool, DesktopSettings, DesktopStage
from agentrl_envs.gui.desktop.stage import find_latest, find_missing, find_unwanted
from agentrl_envs.gui.world import DesktopScene

DEADLINE_S = 60.0
A, B, C = (DesktopStage((), ((name,),)) for name in "ABC")
STAGES = st.lists(st.sampled_from((A, B, C)), max_size=6)


@dataclass(eq=False)
class Fake:
    """A desktop that takes a few turns of the event loop for everything."""

    world: "Fakes"
    settings: DesktopSettings
    served: int = 0
    touched: bool = False
    stage: DesktopStage = BARE
    looks: int = 7
    broken: bool = False
    closed: bool = False

    async def _takes(self) -> None:
        for _ in range(self.world.random.randrange(4)):
            await asyncio.sleep(0)
        await self.world.goes_on.wait()
        if self.closed or self.broken:
            raise EnvError("lost")

    async def healthy(self) -> bool:
        await asyncio.sleep(0)
        return not (self.closed or self.broken)

    async def set_up(self, stage: DesktopStage) -> bool:
        assert self.stage == BARE, "a stage is set on a bare desktop"
        self.stage = stage
        self.world.set_up.append(stage)
        await self._takes()
        return stage not in self.world.restless

    async def fingerprint(self) -> int:
        await self._takes()
        return self.looks

    async def looks_as(self, fingerprint: int) -> bool:
        await self._takes()
        return self.looks == fingerprint

    async def clear(self) -> bool:
        await self._takes()
        self.stage = BARE
        return True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True

    def memory_bytes(self) -> int:
        return 100


@dataclass
class Fakes:
    """A machine with such desktops on it."""

    random: Random = field(default_factory=lambda: Random(0))
    made: list[Fake] = field(default_factory=list[Fake])
    set_up: list[DesktopStage] = field(default_factory=list[DesktopStage])
    restless: tuple[DesktopStage, ...] = ()
    fails: bool = False
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, whatever a desktop is at takes until it is set."""

    def __post_init__(self) -> None:
        self.goes_on.set()

    async def start(self, settings: DesktopSettings) -> Any:
        await asyncio.sleep(0)
        await self.goes_on.wait()
        if self.fails:
            raise EnvError("none starts")
        self.made.append(Fake(self, settings))
        return self.made[-1]

    @property
    def running(self) -> list[Fake]:
        return [one for one in self.made if not one.closed]

    def pool(self, **chosen: Any) -> DesktopPool:
        given: dict[str, Any] = {"desktops": 3, "warm": 0, "open_s": DEADLINE_S, **chosen}
        return DesktopPool(DesktopSettings(**given), start=self.start)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main

    asyncio.run(in_time())


# -- what is to be done ----------------------------------------------------------------------------


def test_a_stage_is_what_of_a_scene_depends_on_nothing_else() -> None:
    files = {"b/": b"", "a.txt": b"1"}
    scene = DesktopScene(goal="Do it.", files=files, programs=[["edit", "a.txt"]], runs_code=True)
    other = DesktopScene(goal="Do that.", files=dict(files), programs=(("edit", "a.txt"),))
    assert DesktopStage.from_scene(scene) == DesktopStage.from_scene(other)
    assert DesktopStage.from_scene(scene).files == (("b/", b""), ("a.txt", b"1")), "in their order"
    assert DesktopStage.from_scene(scene) != DesktopStage.from_scene(
        DesktopScene(goal="", files={**files, "a.txt": b"2"})
    )
    assert DesktopStage.from_scene(DesktopScene(goal="Nothing is there.")) == BARE


def test_what_is_missing_and_what_is_not_wanted() -> None:
    assert find_missing([A, B, A, A], [A]) == [B, A, A]
    assert find_missing([A, BARE], [B]) == [A]
    assert find_unwanted([A, B, A], [A]) == 0
    assert find_unwanted([A, B], [A]) == 1
    assert find_unwanted([A, B], [B, A]) is None
    assert find_latest([A, B, C], [C, A, B]) == 1
    assert find_latest([A, B, C], [C, A]) == 1
    with pytest.raises(ValueError, match="empty"):
        find_latest([], [A])


@given(STAGES, STAGES)
def test_setting_what_is_missing_and_ending_the_unwanted_is_what_is_expected(
    expected: list[DesktopStage], there: list[DesktopStage]
) -> None:
    there += find_missing(expected, there)
    while (at := find_unwanted(there, expected)) is not None:
        there.pop(at)
    assert sorted(map(repr, there)) == sorted(map(repr, expected))


# -- the pool --------------------------------------------------------------------------------------


def test_what_is_expected_is_there_when_it_is_asked_for() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool()
        pool.expect([A])
        await pool.wait_until_ready()
        assert world.set_up == [A]
        assert pool.figures()["staged"] == 1
        assert pool.memory_bytes() == 100, "what waits counts"
        desktop = await pool.take(A)
        assert (desktop.stage, desktop.served) == (A, 1)
        await pool.wait_until_ready()
        assert world.set_up == [A], "it came, and is expected no more"
        figures = pool.figures()
        assert (figures["set"], figures["set_taken"], figures["staged"]) == (1, 1, 0)
        await pool.give(desktop)
        await pool.wait_until_ready()
        assert desktop.stage == BARE
        await pool.close()
        assert not world.running

    run(main())


def test_who_asks_while_it_is_being_set_gets_it() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool()
        await pool.give(await pool.take())
        await pool.wait_until_ready()
        world.goes_on.clear()
        pool.expect([A])
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.set_up == [A]
        asked = asyncio.create_task(pool.take(A))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        world.goes_on.set()
        assert (await asked).stage == A
        assert len(world.made) == 1
        await pool.close()

    run(main())


def test_another_one_comes_to_a_bare_desktop() -> None:
    """Also where all are set: for whom is expected last has to wait."""

    async def main() -> None:
        world = Fakes()
        pool = world.pool(staged=2, desktops=2)
        pool.expect([A, B, C])
        await pool.wait_until_ready()
        assert world.set_up == [A, B], "as many as may wait"
        desktop = await pool.take(C)
        assert desktop.stage == BARE
        assert len(world.running) == 2
        assert (await pool.take(A)).stage == A
        await pool.close()

    run(main())


@pytest.mark.parametrize("harm", ["looks", "broken"])
def test_one_that_is_not_as_it_was_left_is_thrown_away(harm: str) -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool()
        pool.expect([A])
        await pool.wait_until_ready()
        setattr(world.made[0], harm, 8)
        desktop = await pool.take(A)
        assert desktop.stage == BARE
        assert world.made[0].closed
        assert cast("Any", desktop) is world.made[1]
        await pool.close()

    run(main())


def test_what_does_not_rest_or_start_is_not_tried_again() -> None:
    async def main() -> None:
        world = Fakes(restless=(A,))
        pool = world.pool()
        for _ in range(3):
            pool.expect([A])
            await pool.wait_until_ready()
        assert world.set_up == [A]
        assert not world.running
        world.fails = True
        pool.expect([B])
        await pool.wait_until_ready()
        with pytest.raises(EnvError, match="none starts"):
            await pool.take(B)
        world.fails = False
        assert (await pool.take(B)).stage == BARE
        await pool.close()

    run(main())


def test_what_nobody_expects_any_more_is_used_for_the_next_or_ended() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool(idle_s=0.01)
        pool.expect([A])
        await pool.wait_until_ready()
        pool.expect([B])
        await pool.wait_until_ready()
        assert world.set_up == [A, B]
        assert len(world.made) == 1, "it was cleared and set anew"
        await asyncio.sleep(0.05)
        assert world.running, "it is expected"
        pool.expect([])
        pool._tidy()  # pyright: ignore[reportPrivateUsage] - as its timer does
        await pool.wait_until_ready()
        assert not world.running
        await pool.close()

    run(main())


def test_none_is_set_where_all_are_used_or_none_may_be() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool(desktops=1)
        desktop = await pool.take()
        pool.expect([A])
        await pool.wait_until_ready()
        assert not world.set_up
        await pool.give(desktop)
        await pool.wait_until_ready()
        assert world.set_up == [A], "once it has come back"
        await pool.close()
        none = world.pool(staged=0)
        none.expect([B])
        await none.wait_until_ready()
        assert world.set_up == [A]
        await none.close()

    run(main())


def test_who_was_told_later_and_comes_sooner_is_believed() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool()
        pool.expect([A], known_s=2.0)
        pool.expect([B], known_s=1.0)
        await pool.wait_until_ready()
        assert world.set_up == [A]
        pool.expect([B], known_s=3.0)
        await pool.wait_until_ready()
        pool.expect([C])
        await pool.wait_until_ready()
        assert world.set_up == [A, B, C]
        await pool.close()

    run(main())


def test_what_is_expected_comes_before_what_is_kept_ready() -> None:
    """Also where the one that was started to be ready took the last room."""

    async def main() -> None:
        world = Fakes()
        pool = world.pool(desktops=2, warm=1)
        first = await pool.take()
        pool.expect([A])
        await pool.wait_until_ready()
        assert (pool.figures()["staged"], pool.figures()["ready"]) == (1, 0)
        second = await pool.take(A)
        assert second.stage == A
        await pool.give(first)
        await pool.give(second)
        await pool.wait_until_ready()
        await pool.close()

    run(main())


def test_who_gives_up_asking_leaves_nothing_behind() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool(desktops=1)
        pool.expect([A])
        await pool.wait_until_ready()
        world.goes_on.clear()
        asked = asyncio.create_task(pool.take(A))
        for _ in range(10):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        world.goes_on.set()
        assert (await pool.take()).stage == BARE, "its place is free, and there is room"
        assert len(world.running) == 1
        await pool.close()

    run(main())


def test_one_that_starts_while_the_pool_is_closed_is_ended() -> None:
    async def main() -> None:
        world = Fakes()
        pool = world.pool()
        world.goes_on.clear()
        asked = asyncio.create_task(pool.take())
        for _ in range(10):
            await asyncio.sleep(0)
        await pool.close()
        world.goes_on.set()
        with pytest.raises(EnvError, match="closed"):
            await asked
        assert len(world.made) == 1
        assert not world.running

    run(main())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    desktops=st.integers(1, 4),
    warm=st.integers(0, 3),
    staged=st.integers(0, 3),
    players=st.integers(1, 6),
)
def test_any_order_of_events_keeps_the_books(
    seed: int, desktops: int, warm: int, staged: int, players: int
) -> None:
    """Never too many, none lent twice, the right stage or none, and nothing left at the end."""

    async def main() -> None:
        random = Random(seed)
        world = Fakes(random, restless=(C,) if random.random() < 0.3 else ())
        pool = world.pool(desktops=desktops, warm=warm, staged=staged, recycle_after=3)
        lent = set[Any]()

        async def play() -> None:
            for _ in range(random.randrange(1, 6)):
                if random.random() < 0.7:
                    pool.expect(random.choices((A, B, C), k=random.randrange(4)))
                stage = random.choice((A, B, C, BARE))
                taking = asyncio.create_task(pool.take(stage))
                if random.random() < 0.1:
                    await asyncio.sleep(0)
                    taking.cancel()
                desktop: Any = (await asyncio.gather(taking, return_exceptions=True))[0]
                if isinstance(desktop, asyncio.CancelledError):
                    continue
                if isinstance(desktop, BaseException):
                    raise desktop
                assert len(world.running) <= desktops
                assert desktop not in lent
                assert not desktop.closed
                assert desktop.stage in (BARE, stage)
                lent.add(desktop)
                for _ in range(random.randrange(5)):
                    await asyncio.sleep(0)
                desktop.broken = random.random() < 0.1
                desktop.looks = random.randrange(2)
                lent.discard(desktop)
                await pool.give(desktop)
                if random.random() < 0.1 and world.running:
                    random.choice(world.running).broken = True

        await asyncio.gather(*(play() for _ in range(players)))
        await pool.wait_until_ready()
        figures = pool.figures()
        assert figures["used"] == 0
        assert figures["ready"] + figures["staged"] == len(world.running) <= desktops
        assert figures["staged"] <= staged + 1
        await pool.close()
        assert not world.running

    run(main())
