"""The gate at work, in virtual time: the real runner, episodes and trees.

The mutants it catches are listed in test_gate.py.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.router import EngineRouter
from agentrl.env import Action, Info, Observation, Step
from agentrl.errors import ConfigError
from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost, TurnCost
from agentrl.policy import Sampling
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.deadlines import SchedulerDeadlines, SchedulerStalled
from agentrl.rollout.scheduler.failure_limits import FailureRateLimits, RateAlarm
from agentrl.rollout.scheduler.member import QueuedRollout, too_old
from agentrl.rollout.scheduler.policy import SchedulerCounts, SchedulerPolicy, groups_to_open
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.topology import (
    RolloutHooks,
    TooManyFailures,
    check_failures,
    is_stale,
)
from agentrl.simulate.clock import NothingLeftToHappen, run_virtual
from agentrl.simulate.engine import EngineSpeed, SimulatedEngine
from agentrl.simulate.study import LIMITS, StudySetting, study
from agentrl.simulate.synthetic import agentic
from agentrl.simulate.world import FillerChat, SimulatedEnv, TraceReplay
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Tree, Truncated

R = TypeVar("R")

QUICK = EngineSpeed(
    slots=64, step_s=1.0, slot_s=0.0, pause_s=0.0, load_s=0.0, prefill_tokens_per_step=10**9
)
"""A token takes a second, whoever else is there."""


def turns(*tokens: int, step_s: float = 0.0) -> TrajectoryCost:
    return TrajectoryCost(
        prompt_tokens=1,
        turns=tuple(TurnCost(tokens=n, step_s=step_s, reply_tokens=1) for n in tokens),
    )


def test_age_is_no_fault_and_ends_no_run() -> None:
    """Mutant seen caught: the capacity blind to `max_start_lag`, and what is too old a failure.

    Each half alone is seen by one of the next two tests.
    """

    async def main() -> None:
        policy = SchedulerPolicy(
            mode="async", groups_per_step=4, group_size=4, concurrency=64, max_staleness=2,
            max_start_lag=1,
        )  # fmt: skip
        # Groups of unlike length: where all are alike, none waits long enough to be too old thrice.
        rig = Rig([turns(length) for length in (2, 2, 2, 60) for _ in range(4)], policy)
        async with rig.gate() as gate:
            for version in range(1, 30):
                batch = await gate.next_batch()
                outcomes = [leaf.outcome for tree in batch.trees for leaf in tree.leaves]
                check_failures(outcomes, max_failed_fraction=0.0)
                for tree in batch.trees:
                    assert any(isinstance(leaf.outcome, Finished) for leaf in tree.leaves)
                await gate.load_weights(None, version)
            assert not any(name.startswith("failure_rate/") for name in gate.figures())

    run_virtual(main())


def test_a_group_that_age_has_emptied_is_tried_again() -> None:
    async def main() -> None:
        policy = SchedulerPolicy(
            mode="async", groups_per_step=1, group_size=1, max_staleness=3, max_start_lag=1,
            max_restarts=0, min_valid=0,
        )  # fmt: skip
        rig = Rig([turns(60), turns(2), turns(3)], policy)
        async with rig.gate() as gate:
            for version in range(1, 12):
                (tree,) = (await gate.next_batch()).trees
                assert isinstance(tree.leaves[0].outcome, Finished)
                await gate.load_weights(None, version)
            assert gate.figures()["gate/requeued_groups"] > 0
            assert not any(name.startswith("failure_rate/") for name in gate.figures())

    run_virtual(main())
    stale = too_old(QueuedRollout(0, 0))
    assert (stale.kind, is_stale(stale), is_stale(Failed("env", "x"))) == ("stale", True, False)
    check_failures([stale, Finished(1.0)], max_failed_fraction=0.0)
    with pytest.raises(TooManyFailures, match="1 of 1"):
        check_failures([stale, Failed("env", "x")], max_failed_fraction=0.9)


def test_no_more_is_begun_than_its_age_allows() -> None:
    state = SchedulerCounts(
        version=3, waiting=False, open=0, ready=0, accepted=12, queued=0, live=0, parked=0
    )
    policy = SchedulerPolicy(mode="async", groups_per_step=4, group_size=1, max_staleness=2)
    assert groups_to_open(state, policy) == 12
    assert groups_to_open(state, replace(policy, max_start_lag=1)) == 8
    assert groups_to_open(state, replace(policy, max_age=0)) == 12, "masked, not begun again"
    assert groups_to_open(state, replace(policy, max_age=0, when_old="restart")) == 4
    with pytest.raises(ValueError, match="max_start_lag=0"):
        replace(policy, backlog=1, max_start_lag=0)


@dataclass
class Rig:
    """A gate over a simulated world in which trajectory number i of the run costs `costs[i]`."""

    costs: Sequence[TrajectoryCost]
    policy: SchedulerPolicy
    made: list[SimulatedEnv] = field(default_factory=list[SimulatedEnv])
    closed: int = 0
    env: Callable[[TraceReplay], SimulatedEnv] | None = None
    failure_rate: float = 0.0
    limits: EpisodeLimits = LIMITS
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        trace = LatencyTrace(name="rig", trajectories=tuple(self.costs))
        self.world = TraceReplay(trace, failure_rate=self.failure_rate, hang_fraction=0.0)
        self.engine = SimulatedEngine(QUICK, tokens_left=self.world.tokens_left)
        self.tasks = iter(self.world.tasks())

    def make_env(self) -> SimulatedEnv:
        env = self.env(self.world) if self.env else self.world.make_env()
        close = env.close

        async def counted() -> None:
            self.closed += 1
            await close()

        env.close = counted
        self.made.append(env)
        return env

    def gate(self) -> RolloutScheduler:
        rollouts = RolloutRunner(
            make_env=self.make_env,
            engine=self.engine,
            chat=FillerChat(self.world),
            limits=self.limits,
            concurrency=self.policy.concurrency,
            retries=self.policy.retries,
            stall_s=self.options.pop("stall_s", 1e6),
        )
        return rollouts.scheduler(
            self.policy,
            lambda count: [next(self.tasks) for _ in range(count)],
            sampling=Sampling(),
            seed=lambda number, task, sample: number * self.policy.group_size + sample,
            **self.options,
        )


def now() -> float:
    return asyncio.get_running_loop().time()


async def nothing_is_left() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def run(main: Coroutine[Any, Any, R]) -> R:
    async def to_the_end() -> R:
        result = await main
        await nothing_is_left()
        return result

    return run_virtual(to_the_end())


PARTIAL = SchedulerPolicy(mode="partial", groups_per_step=2, group_size=1, over_provision=2.0)


def test_partial_is_aprils() -> None:
    """Lengths 1, 1, 1, 9: two are taken, the third was as fast and is kept, the last goes on."""

    async def main() -> None:
        rig = Rig([turns(1), turns(1), turns(1), turns(9), turns(20), turns(20)], PARTIAL)
        async with rig.gate() as gate:
            first = await gate.next_batch()
            assert [group.state.number for group in first.groups] == [0, 1]
            assert gate.figures()["gate/ready_groups"] == 1
            assert rig.engine.version == 0
            await asyncio.sleep(100)
            await gate.load_weights(None, 1)
            second = await gate.next_batch()
            assert [group.state.number for group in second.groups] == [2, 3]
            (long,) = second.trees[1].trajectories()
            sampled = [v for v in long.versions if v >= 0]
            assert len(sampled) == 9
            assert sampled[0] == 0
            assert sampled[-1] == 1
            assert now() == pytest.approx(100 + 9)
            assert len(rig.made) == 6
        assert rig.closed == 6

    run(main())


@pytest.mark.parametrize("backlog", [0, 1, 3])
def test_a_backlog_makes_every_token_at_least_so_old(backlog: int) -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=2, group_size=2, max_staleness=3, backlog=backlog
    )

    async def main() -> list[list[int]]:
        found: list[list[int]] = []
        async with Rig([turns(3, 5, step_s=0.5)], policy).gate() as gate:
            for step in range(8):
                batch = await gate.next_batch()
                paths = [path for tree in batch.trees for path in tree.trajectories()]
                ages = {step - v for path in paths for v in path.versions if v >= 0}
                found.append([min(ages), max(ages)])
                await gate.load_weights(None, step + 1)
        return found

    for step, (youngest, oldest) in enumerate(run(main())):
        assert min(step, backlog) <= youngest <= oldest <= min(step, policy.max_staleness)


def test_an_interrupted_turn_carries_the_version_of_each_token() -> None:
    async def main() -> None:
        rig = Rig(
            [turns(3), turns(5)], SchedulerPolicy(mode="async", groups_per_step=1, group_size=1)
        )
        async with rig.gate() as gate:
            first = await gate.next_batch()
            assert first.groups[0].state.number == 0
            await gate.load_weights(None, 1)
            second = await gate.next_batch()
            (trajectory,) = second.trees[0].trajectories()
            assert [v for v in trajectory.versions if v >= 0] == [0, 0, 0, 1, 1]
            assert len(trajectory.token_ids) == 1 + 5
            assert second.version == 1
            assert second.ages() == {0: 2, 1: 3}

    run(main())


def test_time_at_the_gate_counts_for_no_deadline() -> None:
    """The long turn takes 9 s of a deadline of 10 and is parked for 1000 in the middle of it."""

    async def main() -> None:
        limits = EpisodeLimits(turn_s=10, episode_s=20, context_tokens=99, reset_s=5, step_s=5)
        rig = Rig([turns(1), turns(1), turns(1), turns(9), turns(1)], PARTIAL, limits=limits)
        async with rig.gate() as gate:
            await gate.next_batch()
            await asyncio.sleep(1000)
            second = await gate.next_batch()
            outcomes = [leaf.outcome for tree in second.trees for leaf in tree.leaves]
            assert outcomes == [Finished(1.0)] * 2

    run(main())


def test_a_turn_beyond_its_deadline_fails_however_often_it_was_parked() -> None:
    async def main() -> None:
        limits = EpisodeLimits(turn_s=6, context_tokens=99)
        policy = SchedulerPolicy(mode="async", groups_per_step=1, group_size=1, retries=0)
        rig = Rig([turns(9)], policy, limits=limits)
        async with rig.gate() as gate:
            batch = asyncio.create_task(gate.next_batch())
            for version in (1, 2):
                await asyncio.sleep(2.5)
                await gate.load_weights(None, version)
            (leaf,) = (await batch).trees[0].leaves
            assert isinstance(leaf.outcome, Failed)
            assert "missed its deadline" in leaf.outcome.error
            assert now() == pytest.approx(6)

    run(main())


def test_a_parked_trajectory_keeps_its_environment_and_steps_go_on_meanwhile() -> None:
    async def main() -> None:
        slow = TrajectoryCost(
            prompt_tokens=1,
            turns=(TurnCost(tokens=1, step_s=5.0), TurnCost(tokens=2, step_s=0.0)),
        )
        rig = Rig([turns(2), slow], SchedulerPolicy(
            mode="partial", groups_per_step=1, group_size=1, over_provision=2.0
        ))  # fmt: skip
        async with rig.gate() as gate:
            await gate.next_batch()
            await asyncio.sleep(100)
            assert [a.phase for a in gate.activities()] == ["gate"]
            assert (rig.closed, len(rig.made)) == (1, 2)
            began = now()
            second = await gate.next_batch()
            assert second.groups[0].state.number == 1
            assert now() - began == pytest.approx(2)

    run(main())


def test_redundancy_takes_the_first_and_ends_the_rest() -> None:
    """Size 4, redundancy 2, durations 1, 2, 3, 4, 50, 60: complete at 4 with the first four."""

    async def main() -> None:
        from agentrl.rollout.scheduler.topology import IndependentRollouts

        rig = Rig(
            [turns(n) for n in (1, 2, 3, 4, 50, 60)],
            SchedulerPolicy(groups_per_step=1, group_size=4),
            options={"topology": IndependentRollouts(redundancy=2)},
        )
        # Seeds number the samples, and a group has six of them here.
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            assert now() == pytest.approx(4)
            assert [leaf.sample for leaf in batch.trees[0].leaves] == [0, 1, 2, 3]
            await asyncio.sleep(0.1)
            assert rig.closed == 6
            figures = gate.figures()
            assert figures["redundancy/kept_tokens_mean"] == 2.5
            assert figures["redundancy/aborted_fraction"] == pytest.approx(1 / 3)

    run(main())


class Told(SimulatedEnv):
    """Notes which task it began, and what it was told comes next."""

    looks_ahead = True

    begun: ClassVar[list[tuple[str, tuple[str, ...]]]] = []

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert options is not None
        Told.begun.append((options["task"].id, tuple(task.id for task in options["next"])))
        return await super().reset(seed=seed, options=options)


def test_an_environment_is_told_which_tasks_come_next() -> None:
    """Side by side, as groups begin in a synchronous step; eight at most."""

    async def main() -> None:
        Told.begun.clear()
        policy = SchedulerPolicy(groups_per_step=3, group_size=4, concurrency=1)
        rig = Rig(
            [turns(1)] * 12, policy, env=lambda world: Told(world, breaks_at=None, hangs=False)
        )
        async with rig.gate() as gate:
            await gate.next_batch()
        order = tuple(f"task-{n % 3}" for n in range(12))
        assert [task for task, _ in Told.begun] == [*order]
        assert [to_come for _, to_come in Told.begun] == [order[n + 1 : n + 9] for n in range(12)]

    run(main())


class Untold(SimulatedEnv):
    """Does not say that it looks ahead."""

    options: ClassVar[list[Mapping[str, Any]]] = []

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        Untold.options.append(options or {})
        return await super().reset(seed=seed, options=options)


def test_who_does_not_look_ahead_is_told_nothing() -> None:
    """Options go on to worlds of others, over wires too."""

    async def main() -> None:
        policy = SchedulerPolicy(groups_per_step=1, group_size=2, concurrency=1)
        rig = Rig(
            [turns(1)] * 2, policy, env=lambda world: Untold(world, breaks_at=None, hangs=False)
        )
        async with rig.gate() as gate:
            await gate.next_batch()

    Untold.options.clear()
    run(main())
    assert [sorted(options) for options in Untold.options] == [["sample", "task"]] * 2


class BreaksOnce(SimulatedEnv):
    broke = False

    async def step(self, action: Action) -> Step:
        if not type(self).broke:
            type(self).broke = True
            raise RuntimeError("once")
        return await super().step(action)


def test_one_failed_trajectory_is_refilled_alone() -> None:
    async def main() -> None:
        BreaksOnce.broke = False
        rig = Rig(
            [turns(2)] * 4,
            SchedulerPolicy(groups_per_step=1, group_size=4),
            env=lambda world: BreaksOnce(world, breaks_at=None, hangs=False),
        )
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            assert [leaf.outcome for leaf in batch.trees[0].leaves] == [Finished(1.0)] * 4
            assert len(rig.made) == 5
            assert gate.figures()["gate/retried"] == 1
            assert now() == pytest.approx(4)

    run(main())


def test_failures_for_good_are_leaves_without_reward_and_rates_stop_the_run() -> None:
    async def main() -> None:
        policy = SchedulerPolicy(groups_per_step=4, group_size=4, retries=0)
        rig = Rig([turns(2)] * 16, policy, failure_rate=1.0)
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            leaves = [leaf for tree in batch.trees for leaf in tree.leaves]
            assert len(leaves) == 16
            assert all(isinstance(leaf.outcome, Failed) for leaf in leaves)
        alarms = FailureRateLimits(window=20, min_count=10, thresholds={"env": 0.5})
        rig = Rig([turns(2)] * 16, policy, failure_rate=1.0, options={"alarms": alarms})
        async with rig.gate() as gate:
            with pytest.raises(RateAlarm, match=r"rollout\.alarms\.env tolerates 50\.0%"):
                await gate.next_batch()
        assert rig.closed == len(rig.made) == 16

    run(main())


class Sticks(SimulatedEnv):
    """Its step takes for ever, and swallows a number of cancellations."""

    swallows = 1

    async def step(self, action: Action) -> Step:
        for _ in range(self.swallows):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e9)
        await asyncio.sleep(1e9)
        raise AssertionError


class SticksTwice(Sticks):
    swallows = 2


def stuck_rig(kind: type[Sticks], **deadlines: float) -> tuple[Rig, list[str]]:
    said: list[str] = []
    rig = Rig(
        [turns(1)],
        SchedulerPolicy(groups_per_step=1, group_size=1, retries=0),
        env=lambda world: kind(world, breaks_at=None, hangs=False),
        limits=EpisodeLimits(context_tokens=99, step_s=50),
        options={"on_stuck": said.append, **deadlines},
    )
    return rig, said


def test_the_watchdog_names_a_step_that_swallows_its_deadline() -> None:
    async def main() -> None:
        rig, said = stuck_rig(Sticks)
        async with rig.gate() as gate:
            (leaf,) = (await gate.next_batch()).trees[0].leaves
            assert said == ["trajectory 0 of group 0 (task task-0): step for 89 s"]
            assert leaf.outcome == Failed("env", f"stuck: {said[0]}")
        rig, said = stuck_rig(SticksTwice)
        async with rig.gate() as gate:
            with pytest.raises(SchedulerStalled, match=r"step for .* it does not end after"):
                await gate.next_batch()
            assert len(said) == 1

    run(main())


def test_a_run_in_which_nothing_moves_stops_and_says_what_it_waits_for() -> None:
    async def main() -> None:
        rig, _ = stuck_rig(Sticks, stall_s=20)
        async with rig.gate() as gate:
            with pytest.raises(
                SchedulerStalled, match=r"no progress for \d+ s.*task-0\): step for"
            ):
                await gate.next_batch()

    run(main())


def test_an_engine_that_does_not_let_go_is_named() -> None:
    class Holds(SimulatedEngine):
        async def pause(self) -> None:
            await asyncio.sleep(1e6)

    async def main() -> None:
        rig = Rig([turns(1), turns(99)], PARTIAL)
        rig.engine = Holds(QUICK, tokens_left=rig.world.tokens_left)
        rig.policy = SchedulerPolicy(
            mode="partial", groups_per_step=1, group_size=1, over_provision=2.0
        )
        async with rig.gate() as gate:
            with pytest.raises(
                SchedulerStalled,
                match="pausing the engine with 1 requests in flight took longer than 180",
            ):
                await gate.next_batch()

    run(main())


@pytest.mark.parametrize("error", [ConfigError("wrong"), GeneratorExit("wrong")])
def test_what_is_no_failure_of_a_trajectory_stops_the_run(error: BaseException) -> None:
    """Kills: a run that waits for a trajectory whose task has ended."""

    class Wrong(SimulatedEnv):
        async def step(self, action: Action) -> Step:
            raise error

    async def main() -> None:
        rig = Rig(
            [turns(1)] * 8,
            SchedulerPolicy(groups_per_step=4, group_size=2),
            env=lambda world: Wrong(world, breaks_at=None, hangs=False),
        )
        async with rig.gate() as gate:
            with pytest.raises(type(error), match="wrong"):
                await gate.next_batch()

    run(main())


def test_segments_bound_what_a_trajectory_gets_per_version() -> None:
    async def main() -> None:
        policy = SchedulerPolicy(
            mode="partial",
            groups_per_step=2,
            group_size=1,
            segment=SegmentBudget(tokens=4, turns=9, segments=3),
        )
        rig = Rig([turns(2), turns(10), turns(1), turns(30)], policy)
        seen: dict[str, tuple[int, Tree]] = {}
        async with rig.gate() as gate:
            for step in range(6):
                for tree in (await gate.next_batch()).trees:
                    seen.setdefault(tree.task.id, (step, tree))
                if step == 0:
                    assert now() == pytest.approx(4)
                await gate.load_weights(None, step + 1)
        assert [seen[f"task-{i}"][0] for i in range(3)] == [0, 2, 1]
        ten, thirty = seen["task-1"][1], seen["task-3"][1]
        assert sampled(ten) == [0] * 4 + [1] * 4 + [2] * 2
        assert isinstance(ten.leaves[0].outcome, Finished)
        assert len(sampled(thirty)) == 12
        assert isinstance(thirty.leaves[0].outcome, Truncated)

    run(main())


def sampled(tree: Tree) -> list[int]:
    (trajectory,) = tree.trajectories()
    return [version for version in trajectory.versions if version >= 0]


def test_hooks_hear_of_turns_ends_and_groups_and_may_drop_them() -> None:
    heard: list[str] = []

    async def main() -> None:
        hooks = RolloutHooks(
            on_turn=lambda attempt, tree: heard.append(f"turn of {attempt.group}"),
            on_finished=lambda attempt, tree, leaf: heard.append(f"end of {attempt.group}"),
            on_group=lambda group, leaves: group.number != 0,
        )
        rig = Rig(
            [turns(1, 1), turns(5)],
            SchedulerPolicy(groups_per_step=1, group_size=1),
            options={"hooks": hooks},
        )
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            assert [group.state.number for group in batch.groups] == [1]
            assert gate.figures()["gate/dropped_groups"] == 1

    run(main())
    assert heard == ["turn of 0", "end of 0", "end of 1"]


def test_several_engines_share_the_load_and_keep_their_trajectories() -> None:
    async def main() -> None:
        rig = Rig([turns(2, 2, 2)] * 8, SchedulerPolicy(groups_per_step=8, group_size=1))
        engines = [SimulatedEngine(QUICK, tokens_left=rig.world.tokens_left) for _ in range(2)]
        router = EngineRouter(engines, base_tokens=1)
        homes: dict[str, set[int]] = {}
        for index, engine in enumerate(engines):
            asked = engine.generate

            async def noted(request: Any, asked: Any = asked, index: int = index) -> Any:
                homes.setdefault(request.id.rsplit("/", 2)[0], set()).add(index)
                return await asked(request)

            engine.generate = noted
        rig.engine = router  # pyright: ignore[reportAttributeAccessIssue]
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            await gate.load_weights(None, 1)
        assert len(batch.trees) == 8
        assert router.loads == (0, 0)
        assert sum(len(own) == 1 for own in homes.values()) >= 6
        assert 3 <= sum(0 in own for own in homes.values()) <= 5
        assert router.version == 1
        await router.close()

    run(main())


def test_closing_in_the_middle_closes_every_environment() -> None:
    async def main() -> None:
        rig = Rig([turns(50)] * 8, SchedulerPolicy(groups_per_step=4, group_size=2))
        async with rig.gate() as gate:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await gate.next_batch()
            assert len(gate.list_unfinished()) == 4
        assert rig.closed == len(rig.made) == 8

    run(main())


def test_virtual_time_tells_a_deadlock() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeftToHappen):
        run_virtual(waits())


def mixed(seed: int) -> list[TrajectoryCost]:
    random = Random(seed)
    return [
        turns(
            *(random.choice((1, 3, 30)) for _ in range(random.randint(1, 4))),
            step_s=random.choice((0.0, 0.5, 20.0)),
        )
        for _ in range(40)
    ]


@settings(max_examples=40)
@given(
    mode=st.sampled_from(("sync", "partial", "async")),
    groups=st.integers(1, 4),
    size=st.integers(1, 4),
    concurrency=st.integers(1, 24),
    lag=st.none() | st.integers(0, 2),
    age=st.none() | st.integers(0, 2),
    failure_rate=st.sampled_from((0.0, 0.2)),
    seed=st.integers(0, 1000),
)
def test_a_whole_run_keeps_its_promises(
    mode: Any,
    groups: int,
    size: int,
    concurrency: int,
    lag: int | None,
    age: int | None,
    failure_rate: float,
    seed: int,
) -> None:
    policy = SchedulerPolicy(
        mode=mode,
        groups_per_step=groups,
        group_size=size,
        concurrency=concurrency,
        over_provision=2.0,
        max_start_lag=lag,
        max_age=age,
        when_old="restart",
        max_restarts=1,
    )

    async def main() -> list[tuple[float, tuple[int, ...]]]:
        rig = Rig(mixed(seed), policy, failure_rate=failure_rate)
        trained: list[tuple[float, tuple[int, ...]]] = []
        tasks: set[str] = set()
        async with rig.gate() as gate:
            for step in range(4):
                batch = await gate.next_batch()
                assert len(batch.trees) == groups
                for tree in batch.trees:
                    assert tree.task.id not in tasks
                    tasks.add(tree.task.id)
                    assert [leaf.sample for leaf in tree.leaves] == list(range(size))
                    for trajectory in tree.trajectories():
                        check_ages(batch.trainable, trajectory.versions, step)
                        trained.append((now(), trajectory.versions))
                await asyncio.sleep(7)
                await gate.load_weights(None, step + 1)
        assert rig.closed == len(rig.made)
        return trained

    def check_ages(
        trainable: Callable[[np.ndarray], np.ndarray], versions: tuple[int, ...], step: int
    ) -> None:
        for trains, version in zip(trainable(np.array(versions)), versions, strict=True):
            assert not trains or version >= 0
            assert not trains or age is None or step - version <= age

    assert run(main()) == run(main())


def test_the_same_study_twice_is_the_same() -> None:
    policy = SchedulerPolicy(mode="async", groups_per_step=4, group_size=4, concurrency=32)
    setting = StudySetting(trace=agentic(), policy=policy, steps=4, warm_steps=1, failure_rate=0.05)
    assert study(setting) == study(setting)


def test_deadlines_have_defaults_for_all_that_waits() -> None:
    deadlines = SchedulerDeadlines()
    assert min(deadlines.turn_s, deadlines.load_s, deadlines.stall_s, deadlines.fork_s) > 0
    assert Task(prompt="x").id
