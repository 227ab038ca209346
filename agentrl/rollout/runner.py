"""Steps 2 to 5 of the flow: many trajectories at once, bounded, each on its own environment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentrl.authoring.env_contract import CLOSE_S
from agentrl.chat.renderer import ChatRenderer
from agentrl.env import Env
from agentrl.errors import ForkUnsupported, RolloutError
from agentrl.events.kinds import GroupRequest
from agentrl.events.log import EventLog
from agentrl.events.state import ResumePoint
from agentrl.policy import PolicyEngine, Sampling
from agentrl.rollout.env_recovery import EnvRecovery, EnvRecoveryCounts
from agentrl.rollout.env_replay import ReplayMismatch, replay
from agentrl.rollout.episode import EpisodeLimits, EpisodePosition, EpisodeRunner
from agentrl.rollout.scheduler.deadlines import SchedulerDeadlines
from agentrl.rollout.scheduler.failure_limits import FailureRateLimits
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import Play, RolloutScheduler
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.rollout.scheduler.topology import RolloutHooks, RolloutTopology
from agentrl.rollout.seed_repeats import SeedRepeats
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree

NEVER_S = 1e9
"""A turn's deadline, where the slot has its own that leaves out the time at the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRunner:
    """Turns tasks into trees. Every trajectory gets an environment of its own."""

    make_env: Callable[[], Env]
    engine: PolicyEngine
    chat: ChatRenderer
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    concurrency: int = 64
    retries: int = 2
    fork_s: float = 60.0
    stall_s: float = 3600.0
    """The run stops when nothing at all has moved for so long."""
    entropies: bool = False
    rebuilds: int = 0
    """Times a trajectory's lost environment is rebuilt; then the trajectory fails."""
    rebuilt: EnvRecoveryCounts = field(default_factory=EnvRecoveryCounts)

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        seed: int,
        sampling: Sampling,
    ) -> list[Tree]:
        """Return one tree per task with `group_size` leaves each, failures among them.

        A task that is there twice is played twice, with other seeds the second time.

        Same tasks, seed and weights give the same tokens, however the timing falls. Returns when
        the last trajectory has ended; cancelling the call ends them all and closes their
        environments.
        """
        policy = SchedulerPolicy(
            mode="sync",
            groups_per_step=len(tasks),
            group_size=group_size,
            concurrency=self.concurrency,
            retries=self.retries,
        )
        queue, repeats = list(tasks), SeedRepeats()

        def seeds(number: int, task: Task, sample: int) -> int:
            return derive(seed, task.id, sample, *repeats.find_repeat(number, task.id))

        def take(count: int) -> list[Task]:
            batch, queue[:] = queue[:count], queue[count:]
            return batch

        async with self.scheduler(policy, take, sampling=sampling, seed=seeds) as scheduler:
            return list((await scheduler.next_batch()).trees)

    def scheduler(
        self,
        policy: SchedulerPolicy,
        tasks: Callable[[int], Sequence[Task | GroupRequest]],
        *,
        sampling: Sampling,
        seed: Callable[[int, Task, int], int],
        alarms: FailureRateLimits | None = None,
        topology: RolloutTopology | None = None,
        play: Play | None = None,
        hooks: RolloutHooks | None = None,
        on_stuck: Callable[[str], None] = lambda text: None,
        version: int = 0,
        events: EventLog | None = None,
        first_group: int = 0,
    ) -> RolloutScheduler:
        """Return the scheduler that makes batches of an endless stream of tasks."""

        async def alone(slot: RolloutSlot) -> Leaf:
            world = await self.restore_env(slot)
            return await self.episode(slot, sampling, world=world).run()

        return RolloutScheduler(
            policy=policy,
            engine=self.engine,
            play=play or alone,
            tasks=tasks,
            seed=seed,
            deadlines=self._deadlines(),
            alarms=alarms,
            topology=topology,
            hooks=hooks,
            on_stuck=on_stuck,
            version=version,
            events=events,
            first_group=first_group,
        )

    def episode(
        self, slot: RolloutSlot, sampling: Sampling, *, world: Env | None = None
    ) -> EpisodeRunner:
        """Return the trajectory of a slot, with an environment of its own.

        With `world`, which has lived through what was kept of the trajectory, it goes on there.
        """
        order = slot.order or GroupRequest(task=slot.tree.task)
        # A retry plays the same seed: what failed was not the policy's doing.
        return EpisodeRunner(
            env=slot.watch_env(self.make_env()) if world is None else world,
            engine=slot.engine,
            chat=self.chat,
            tree=slot.tree,
            sample=slot.attempt.sample,
            seed=slot.seed,
            sampling=sampling,
            limits=replace(
                self.limits,
                turn_s=NEVER_S,
                max_turns=order.max_turns or self.limits.max_turns,
                max_turn_tokens=order.max_turn_tokens or self.limits.max_turn_tokens,
            ),
            clock=slot.clock,
            begin=None if world is None or slot.stand is None else place_of(slot.tree, slot.stand),
            entropies=self.entropies,
            events=slot.events if slot.events.keeps_turns else None,
            rebuilding=self._rebuilding(slot) if self.rebuilds else None,
        )

    async def restore_env(self, slot: RolloutSlot) -> Env | None:
        """Return the world of a trajectory that was kept; None for one that begins.

        One whose world does not come back begins again.
        """
        if slot.stand is None:
            return None
        retries = self.retries
        while True:
            try:
                return await replay(
                    lambda: slot.watch_env(self.make_env()),
                    slot.stand.history,
                    reset_s=self.limits.reset_s,
                    step_s=self.limits.step_s,
                )
            except (RolloutError, ForkUnsupported) as error:
                # A sandbox that broke says nothing about the world; an answer that differs does.
                if isinstance(error, ForkUnsupported) or retries == 0:
                    slot.restart(differs=isinstance(error, ReplayMismatch))
                    return None
                retries -= 1

    def _rebuilding(self, slot: RolloutSlot) -> EnvRecovery:
        return EnvRecovery(
            lambda: slot.watch_env(self.make_env()),
            left=self.rebuilds,
            reset_s=self.limits.reset_s,
            step_s=self.limits.step_s,
            rebuilt=self.rebuilt,
        )

    def _deadlines(self) -> SchedulerDeadlines:
        limits = self.limits
        return SchedulerDeadlines(
            turn_s=limits.turn_s,
            fork_s=self.fork_s,
            stall_s=self.stall_s,
            phases={
                "reset": limits.reset_s,
                "generate": limits.turn_s,
                "step": limits.step_s,
                "fork": self.fork_s,
                "close": CLOSE_S,
            },
        )


def place_of(tree: Tree, stand: ResumePoint) -> EpisodePosition:
    """Return the place of a kept trajectory, as an episode begins there."""
    return EpisodePosition(
        node=stand.node,
        turn=stand.turn,
        context_tokens=0 if stand.node is None else len(tree.tokens(stand.node)),
        turn_rewards=stand.turn_rewards,
        components=stand.components,
        tool_calls=stand.tool_calls,
        seconds=stand.seconds,
        history=stand.history,
        begun=stand.begun,
        request=stand.request,
    )
