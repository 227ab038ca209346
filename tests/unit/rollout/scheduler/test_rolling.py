"""Engines that take new weights in turn: what may begin, where, and how old it gets.

Mutants seen caught: admission by the trainer's version; a birth at it; the oldest token to come
taken for one of it, or what is in flight forgotten over it; weights that count as everywhere when
they set out, or never; a roll that begins before the last has ended; an evaluation beside a roll; a
roll that is left running, or whose error nobody hears; all engines loaded at once; a whole that
claims the newest version; beginning on the engine that loads, on a stale one, or on one that is
swamped; homes kept across a load, or given up for a fresher engine.
"""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.engine.router import EngineRouter, freshest
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.policy import Completion, GenerateRequest, PolicyEngine
from agentrl.rollout.scheduler.policy import SchedulerCounts, SchedulerPolicy, groups_to_open
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.rollout.scheduler.rolling_update import RollingEngine
from agentrl.simulate.engine import EngineSpeed, SimulatedEngine
from tests.unit.rollout.scheduler.test_gate_runner import Rig, mixed, now, run, turns

LOADS_S = (5.0, 9.0, 14.0)
"""Of three engines; a step of a run trains for seven seconds."""


def rolling(**changes: Any) -> SchedulerPolicy:
    given: dict[str, Any] = {"mode": "async", "groups_per_step": 2, "group_size": 2, **changes}
    return SchedulerPolicy(rolling=True, **given)


def fleet(rig: Rig, loads_s: tuple[float, ...] = LOADS_S) -> EngineRouter:
    """Put engines of different load times behind a rig."""
    engines = [
        SimulatedEngine(
            EngineSpeed(
                slots=64,
                step_s=1.0,
                slot_s=0.0,
                pause_s=0.0,
                load_s=load_s,
                prefill_tokens_per_step=10**9,
            ),
            tokens_left=rig.world.tokens_left,
        )
        for load_s in loads_s
    ]
    router = EngineRouter(engines, base_tokens=1)
    rig.engine = router  # pyright: ignore[reportAttributeAccessIssue]
    return router


# --- decisions ------------------------------------------------------------------------------------


def test_a_trajectory_begins_on_the_freshest_engine_that_is_not_swamped() -> None:
    def of(versions: tuple[int, ...], loads: tuple[float, ...], slack: float = 2.0) -> list[int]:
        return [*freshest(range(len(versions)), versions=versions, loads=loads, slack=slack)]

    assert of((4, 4, 4), (0, 0, 0)) == [0, 1, 2]
    assert of((4, 5, 4), (0, 0, 0)) == [1]
    assert of((4, 5, 5), (3, 8, 9)) == [1]  # twice 3, and 2
    assert of((4, 5, 5), (3, 9, 9)) == [0, 1, 2]
    assert [*freshest([0, 2], versions=(4, 9, 5), loads=(0, 0, 0), slack=0.0)] == [2]


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=6),
    slack=st.floats(0, 10),
)
def test_there_is_always_one_and_never_a_staler_one_while_a_fresh_one_has_room(
    rows: list[tuple[int, int]], slack: float
) -> None:
    versions, loads = [v for v, _ in rows], [load for _, load in rows]
    chosen = freshest(range(len(rows)), versions=versions, loads=loads, slack=slack)
    assert chosen
    roomy = [i for i, v in enumerate(versions) if v == max(versions)]
    roomy = [i for i in roomy if loads[i] <= 2 * min(loads) + slack]
    assert set(chosen) == set(roomy or range(len(rows)))


def test_what_may_begin_follows_the_engine_that_lags() -> None:
    policy = rolling(max_staleness=1, concurrency=100)
    counts: dict[str, Any] = {
        "waiting": True,
        "open": 0,
        "ready": 0,
        "queued": 0,
        "live": 0,
        "parked": 0,
    }

    def opened(reached: int | None) -> int:
        state = SchedulerCounts(version=3, reached=reached, accepted=6, **counts)
        return groups_to_open(state, policy)

    assert opened(None) == opened(3) == 4
    assert opened(2) == 2


def test_a_trajectory_is_as_old_as_the_engine_that_lags() -> None:
    ledger = RolloutQueue(rolling(max_start_lag=1), version=3)
    ledger.publish(4, rolls=True)
    assert ledger.state.version == 4
    assert ledger.oldest == 3
    ledger.open_groups([0])
    first = ledger.start_next()
    ledger.reach(4)
    second = ledger.start_next()
    assert first is not None
    assert second is not None
    assert (first.born, second.born) == (3, 4)
    assert ledger.publish(5, rolls=True) == [first]


def test_only_an_open_gate_rolls() -> None:
    with pytest.raises(ValueError, match=r"rolling is true, but with mode=sync.*mode=async"):
        SchedulerPolicy(mode="sync", groups_per_step=1, group_size=1, rolling=True)


# --- the router -----------------------------------------------------------------------------------


class Slow(ScriptedEngine):
    """Loads when it is told to, and notes who asked."""

    def __init__(self, version: int = 0, *, token_s: float = 1.0) -> None:
        super().__init__(lambda request: (1,) * 20, token_s=token_s, version=version)
        self.loading = asyncio.Event()
        self.may_load = asyncio.Event()

    async def load(self, weights: Any, version: int) -> None:
        self.loading.set()
        await self.may_load.wait()
        await super().load(weights, version)


def asked(id: str, tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(id=id, prompt=(1, 2, 3), max_new_tokens=tokens)


def test_three_engines_take_weights_in_turn() -> None:
    async def main() -> None:
        engines = [Slow() for _ in range(3)]
        router = EngineRouter(engines, base_tokens=1)
        assert isinstance(router, RollingEngine)
        first: list[asyncio.Task[Completion]] = []
        for number in range(3):  # one trajectory at home on each
            first.append(asyncio.create_task(router.generate(asked(f"{number}/0/0", 20))))
            await asyncio.sleep(0)
            assert router.loads[number] > 0
        roll = asyncio.create_task(router.roll("weights", 1))
        for turn, engine in enumerate(engines):
            await engine.loading.wait()
            assert [e.loading.is_set() for e in engines].count(True) == turn + 1
            assert router.version == 0  # of the whole, until the last
            # One that begins goes to an engine that is not loading, the freshest there is.
            count = [len(e.requests) for e in engines]
            done = await router.generate(asked(f"new {turn}/0/0", 1))
            took = [len(e.requests) - n for e, n in zip(engines, count, strict=True)].index(1)
            assert took != turn
            assert done.versions == ((1,) if turn else (0,))
            engine.may_load.set()
        await roll
        assert router.version == 1
        assert [e.loads for e in engines] == [[("weights", 1)]] * 3
        for done in await asyncio.gather(*first):
            assert len(done.token_ids) == 20  # nobody was interrupted
            assert done.versions == tuple(sorted(done.versions))
        await router.close()

    run(main())


def test_a_trajectory_stays_at_home_until_its_engine_has_other_weights() -> None:
    async def main() -> None:
        engines = [ScriptedEngine(lambda request: (1,) * 9) for _ in range(2)]
        router = EngineRouter(engines, base_tokens=1)
        await router.generate(asked("a/0/0"))
        await engines[1].load(None, 1)  # the other one is fresher now, and it stays all the same
        await router.generate(asked("a/1/0"))
        assert [len(engine.requests) for engine in engines] == [2, 0]
        await router.generate(asked("b/0/0"))  # one that begins does not
        assert [len(engine.requests) for engine in engines] == [2, 1]
        await engines[0].load(None, 2)  # its cache is gone, and another engine is as good
        hold = asyncio.create_task(router.generate(asked("c/0/0", 9)))
        await asyncio.sleep(0)
        await router.generate(asked("b/1/0"))  # its home has kept what it has
        assert engines[1].requests[-1].id == "b/1/0"
        await hold
        await engines[1].load(None, 3)
        await router.generate(asked("a/2/0"))  # at home there is nothing left, and older weights
        assert engines[1].requests[-1].id == "a/2/0"
        await router.close()

    run(main())


def test_weights_that_one_engine_refuses_end_the_roll() -> None:
    class Refuses(ScriptedEngine):
        async def load(self, weights: Any, version: int) -> None:
            raise EngineError("not these")

    async def main() -> None:
        router = EngineRouter([ScriptedEngine({}), Refuses({}), ScriptedEngine({})])
        with pytest.raises(EngineError, match="not these"):
            await router.roll(None, 1)
        assert router.version == 0

    run(main())


# --- the gate -------------------------------------------------------------------------------------


def test_sampling_goes_on_while_weights_go_round() -> None:
    async def main() -> None:
        rig = Rig([turns(10)] * 200, rolling(concurrency=12, max_staleness=3))
        router = fleet(rig)
        async with rig.gate() as gate:
            await gate.next_batch()
            began = now()
            await gate.load_weights(None, 1)
            assert now() == began  # the trainer goes on at once
            assert router.version == 0
            ended = rig.closed
            await asyncio.sleep(sum(LOADS_S) - 1)
            assert router.version == 0
            await asyncio.sleep(2)
            assert router.version == 1
            assert rig.closed > ended  # trajectories ended meanwhile
            assert gate.figures()["gate/roll_s"] == pytest.approx(sum(LOADS_S))
            found = Counter[tuple[int, ...]]()
            for version in range(2, 6):
                batch = await gate.next_batch()
                for tree in batch.trees:
                    for trajectory in tree.trajectories():
                        found[trajectory.versions] += 1
                await gate.load_weights(None, version)
            assert any(len(set(versions) - {-1}) > 1 for versions in found)  # mixed in one
        await router.close()

    run(main())


def test_who_needs_one_version_waits_for_the_roll() -> None:
    async def main() -> None:
        rig = Rig([turns(3)] * 100, rolling(max_staleness=2))
        router = fleet(rig)
        async with rig.gate() as gate:
            await gate.next_batch()
            await gate.load_weights(None, 1)
            async with gate.paused():  # an evaluation, say
                assert router.version == 1
            await gate.next_batch()
            await gate.load_weights(None, 2)
            await gate.next_batch()
            began = now()
            await gate.load_weights(None, 3)  # the roll before comes first
            assert router.version >= 2
            assert now() >= began
        await router.close()

    run(main())


def test_what_keeps_an_engine_from_its_weights_ends_the_run() -> None:
    async def main() -> None:
        rig = Rig([turns(3)] * 100, rolling(max_staleness=5))
        router = fleet(rig)

        async def refuse(prepared: Any, version: int) -> None:
            raise EngineError("no such weights")

        router.roll = refuse
        async with rig.gate() as gate:
            await gate.next_batch()
            await gate.load_weights(None, 1)
            await asyncio.sleep(1)
            with pytest.raises(EngineError, match="no such weights"):
                await gate.next_batch()
        await router.close()

    run(main())


def test_closing_in_the_middle_ends_the_roll() -> None:
    async def main() -> None:
        rig = Rig([turns(3)] * 100, rolling())
        router = fleet(rig)
        async with rig.gate() as gate:
            await gate.next_batch()
            await gate.load_weights(None, 1)
        assert router.version == 0
        await router.close()

    run(main())


def test_one_engine_cannot_roll() -> None:
    rig = Rig([turns(3)], rolling())
    assert isinstance(rig.engine, PolicyEngine)
    with pytest.raises(ConfigError, match=r"SimulatedEngine is a single engine.*engine\.processes"):
        rig.gate()


@settings(max_examples=40, deadline=None)
@example(staleness=2, lag=None, groups=2, size=2, concurrency=3, train_s=1.0, seed=3)
@given(
    staleness=st.integers(0, 3),
    lag=st.none() | st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.integers(1, 3),
    concurrency=st.integers(1, 16),
    train_s=st.sampled_from((1.0, 7.0, 40.0)),
    seed=st.integers(0, 1000),
)
def test_bounds_hold_with_mixed_versions(
    staleness: int,
    lag: int | None,
    groups: int,
    size: int,
    concurrency: int,
    train_s: float,
    seed: int,
) -> None:
    """With a staleness of 0 every token is of the version that trains, though engines lag; with a
    bound on the start nothing older trains; and no token is of a version that is not made yet."""
    policy = rolling(
        groups_per_step=groups,
        group_size=size,
        concurrency=concurrency,
        max_staleness=staleness,
        max_start_lag=lag,
        max_restarts=100,
    )
    random = Random(seed)
    loads_s = (random.choice((0.5, 5.0)), random.choice((1.0, 30.0)), 2.0)

    async def main() -> None:
        rig = Rig(mixed(seed), policy)
        router = fleet(rig, loads_s)
        oldest = 0
        async with rig.gate() as gate:
            for step in range(4):
                batch = await gate.next_batch()
                assert batch.version == step
                for tree in batch.trees:
                    assert len(tree.leaves) == size
                    for trajectory in tree.trajectories():
                        drawn = [v for v in trajectory.versions if v >= 0]
                        assert drawn
                        assert max(drawn) <= step
                        assert lag is None or step - min(drawn) <= lag
                        assert staleness or set(drawn) == {step}
                        assert min(drawn) >= oldest
                oldest = batch.oldest
                await asyncio.sleep(train_s)
                await gate.load_weights(None, step + 1)
        await router.close()

    run(main())
