"""One setting of the scheduler, played in virtual time, and what came of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from agentrl.metrics.latency_trace import LatencyTrace
from agentrl.policy import Sampling
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.batch import RolloutBatch
from agentrl.rollout.scheduler.policy import Mode, SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.runtime.seeds import derive
from agentrl.simulate.clock import run_virtual
from agentrl.simulate.engine import EngineSpeed, SimulatedEngine
from agentrl.simulate.world import FillerChat, TraceReplay
from agentrl.task import Task
from agentrl.trajectory import Failed

LIMITS = EpisodeLimits(
    max_turns=10**6,
    max_turn_tokens=10**9,
    context_tokens=10**9,
    reset_s=300.0,
    step_s=300.0,
    turn_s=36_000.0,
    episode_s=1e8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySetting:
    """Setting of a simulation."""

    trace: LatencyTrace
    policy: SchedulerPolicy
    speed: EngineSpeed = field(default_factory=EngineSpeed)
    train_s: float = 20.0
    steps: int = 12
    warm_steps: int = 3
    """Steps before anything is measured: the scheduler's steady state is what counts."""
    granule_tokens: int = 32
    """Real tokens per simulated one; 1 is exact and slow."""
    failure_rate: float | None = None
    """Failure rate of attempts; the trace's own by default."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A stretch of time, in virtual seconds."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTimeline:
    """Spans and load of a simulated run over time."""

    spans: tuple[TimeSpan, ...]
    seats: tuple[tuple[float, int], ...]
    """Times at which the number of requests being decoded changed, and the new number."""
    slots: int
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Measurements of a setting, over the steps that are measured."""

    setting: StudySetting
    seconds: float
    trajectories: int
    tokens: int
    failed: int
    retried: int
    engine_busy: float
    """Work done over what the engine could have done."""
    env_busy: float
    """Seconds environments worked, over those they could have."""
    env_held: float
    """Seconds they had an episode, working or waiting for the policy, over those they could."""
    ideal_per_s: float
    """Trajectories per second if the busiest of engine, environments and trainer never waited."""
    age_mean: float
    age_max: int
    timeline: StudyTimeline

    @property
    def per_s(self) -> float:
        """Return trajectories per virtual second."""
        return self.trajectories / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Return trained tokens per virtual second."""
        return self.tokens / self.seconds


def study(setting: StudySetting) -> StudyResult:
    """Play a setting to its end."""
    return run_virtual(_Study(setting).run())


def compare(
    setting: StudySetting, modes: Sequence[Mode] = ("sync", "partial", "async")
) -> list[StudyResult]:
    """Play the same setting in several modes."""
    return [study(replace(setting, policy=replace(setting.policy, mode=mode))) for mode in modes]


def ideal_per_s(setting: StudySetting) -> float:
    """Return trajectories per second when work is divided by capacity and nothing ever waits.

    The engine decodes with all slots, every place has an environment that works or is decoded for
    at the engine's speed with all slots, and the trainer trains one batch after the other.
    """
    trace, policy, speed = setting.trace, setting.policy, setting.speed
    per_batch = policy.groups_per_step * policy.group_size
    solo_s = trace.env_s_mean + trace.tokens_mean * speed.token_s(min(speed.slots, 1))
    rates = [
        speed.tokens_per_s / trace.tokens_mean,
        policy.concurrency / solo_s,
        per_batch / setting.train_s if setting.train_s else float("inf"),
    ]
    return min(rates)


_Mark = tuple[float, float, float, float]
"""The time, and the seconds of the engine, of environments that work, and of those held."""


class _Study:
    def __init__(self, setting: StudySetting) -> None:
        self._setting = setting
        self._world = TraceReplay(
            setting.trace,
            granule_tokens=setting.granule_tokens,
            failure_rate=setting.failure_rate,
            seed=setting.seed,
        )
        self._engine = SimulatedEngine(
            setting.speed,
            tokens_left=self._world.tokens_left,
            granule_tokens=setting.granule_tokens,
        )
        self._spans: list[TimeSpan] = []

    async def run(self) -> StudyResult:
        setting = self._setting
        rollouts = RolloutRunner(
            make_env=self._world.make_env,
            engine=self._engine,
            chat=FillerChat(self._world),
            limits=LIMITS,
            concurrency=setting.policy.concurrency,
            retries=setting.policy.retries,
            stall_s=1e7,
        )
        stream = iter(self._world.tasks())

        def seed(number: int, task: Task, sample: int) -> int:
            return derive(setting.seed, number, sample)

        batches: list[RolloutBatch] = []
        scheduler = rollouts.scheduler(
            setting.policy,
            lambda count: list(islice(stream, count)),
            sampling=Sampling(),
            seed=seed,
        )
        async with scheduler:
            started = self._mark()
            for step in range(setting.steps):
                if step == setting.warm_steps:
                    started = self._mark()
                    batches.clear()
                batches.append(await self._step(scheduler, step))
            ended = self._mark()
            retried = scheduler.figures()["gate/retried"]
        await self._engine.close()
        return self._result(batches, started, ended, round(retried))

    async def _step(self, scheduler: RolloutScheduler, step: int) -> RolloutBatch:
        loop = asyncio.get_running_loop()
        began = loop.time()
        batch = await scheduler.next_batch()
        collected = loop.time()
        await asyncio.sleep(self._setting.train_s)
        trained = loop.time()
        await scheduler.load_weights(None, step + 1)
        self._spans += [
            TimeSpan(name="collect", start_s=began, end_s=collected),
            TimeSpan(name="train", start_s=collected, end_s=trained),
            TimeSpan(name="load", start_s=trained, end_s=loop.time()),
        ]
        return batch

    def _mark(self) -> _Mark:
        self._engine.advance()
        self._world.hold()
        now_s = asyncio.get_running_loop().time()
        return now_s, self._engine.busy_s, self._world.busy_s, self._world.held_s

    def _result(
        self,
        batches: list[RolloutBatch],
        started: _Mark,
        ended: _Mark,
        retried: int,
    ) -> StudyResult:
        setting = self._setting
        seconds, engine_s, env_s, held_s = (b - a for a, b in zip(started, ended, strict=True))
        leaves = [leaf for batch in batches for tree in batch.trees for leaf in tree.leaves]
        ages: dict[int, int] = {}
        for batch in batches:
            for age, count in batch.ages().items():
                ages[age] = ages.get(age, 0) + count
        tokens = sum(ages.values())
        return StudyResult(
            setting=setting,
            seconds=seconds,
            trajectories=sum(not isinstance(leaf.outcome, Failed) for leaf in leaves),
            tokens=tokens * setting.granule_tokens,
            failed=sum(isinstance(leaf.outcome, Failed) for leaf in leaves),
            retried=retried,
            engine_busy=engine_s / seconds,
            env_busy=env_s / seconds / setting.policy.concurrency,
            env_held=held_s / seconds / setting.policy.concurrency,
            ideal_per_s=ideal_per_s(setting),
            age_mean=sum(age * count for age, count in ages.items()) / max(1, tokens),
            age_max=max(ages, default=0),
            timeline=StudyTimeline(
                spans=tuple(self._spans),
                seats=tuple(self._engine.seats),
                slots=setting.speed.slots,
                end_s=ended[0],
            ),
        )
