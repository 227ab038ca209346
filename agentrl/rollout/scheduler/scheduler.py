"""The scheduler at work: a coroutine per trajectory, and the gate that lets their requests through.

    who waits               for what                              who wakes it
    ----------------------  ------------------------------------  ---------------------------------
    a trajectory            the gate, before every request        `next_batch`, `load_weights`
    a parked trajectory     its next segment                      `load_weights`, or all are parked
    a branch                a place, before its first request     the end of a trajectory
    `next_batch`            a batch, or an error                  the end of a trajectory
    both                    nothing in flight after closing       the end of a request
    the watchdog            its period                            the clock

Closing the gate ends what the engine has in flight; each trajectory keeps its partial tokens and
its environment, and goes on from its exact last token when the gate opens, perhaps under newer
weights. Everything runs on one event loop and takes its time from it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from agentrl.errors import FailureKind
from agentrl.events.kinds import (
    TOO_OLD,
    ForkPoint,
    GroupDropped,
    GroupRequest,
    GroupResized,
    RolloutAbandoned,
    RolloutFinished,
)
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState, ResumePoint
from agentrl.policy import Completion, PolicyEngine
from agentrl.rollout.scheduler.batch import RolloutBatch, RolloutLengthBias
from agentrl.rollout.scheduler.deadlines import BlockDeadline, SchedulerDeadlines
from agentrl.rollout.scheduler.failure_limits import FailureRateLimits, OutcomeRates
from agentrl.rollout.scheduler.member import QueuedRollout, too_old
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.rollout.scheduler.rolling_update import RollingUpdate
from agentrl.rollout.scheduler.running import RunningRollout, check_moving, end_overdue
from agentrl.rollout.scheduler.slot import RolloutSlot, sampled_turns
from agentrl.rollout.scheduler.topology import (
    IndependentRollouts,
    OutOfTasks,
    RolloutHooks,
    RolloutTopology,
    is_stale,
)
from agentrl.rollout.scheduler.watchdog import SlotActivity, name_all
from agentrl.rollout.scheduler.work import RolloutWork
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.threads import await_to_the_end
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree

Play = Callable[[RolloutSlot], Awaitable[Leaf]]
"""Plays one trajectory on its slot and returns its leaf, which is not on the tree yet."""


@runtime_checkable
class SleepingEngine(PolicyEngine, Protocol):
    """A policy engine that gives up memory while a trainer on the same device computes."""

    async def sleep(self) -> None:
        """Give up memory until the next `load`; requests wait for that."""
        ...


@runtime_checkable
class CountingEngine(PolicyEngine, Protocol):
    """A policy engine that tells how far the turns are that it samples."""

    def count_open_tokens(self) -> int:
        """Return the tokens sampled for requests that are not answered yet."""
        ...


class RolloutScheduler(ClosingResource):
    """Turns a stream of tasks into batches. Close it, or use it in `async with`."""

    def __init__(
        self,
        *,
        policy: SchedulerPolicy,
        engine: PolicyEngine,
        play: Play,
        tasks: Callable[[int], Sequence[Task | GroupRequest]],
        seed: Callable[[int, Task, int], int],
        deadlines: SchedulerDeadlines | None = None,
        alarms: FailureRateLimits | None = None,
        topology: RolloutTopology | None = None,
        hooks: RolloutHooks | None = None,
        on_stuck: Callable[[str], None] = lambda text: None,
        version: int = 0,
        events: EventLog | None = None,
        first_group: int = 0,
    ) -> None:
        """Take what to run, and on what.

        `tasks` hands out the next so many, fewer when there are no more now; `seed` makes a
        trajectory's seed from its group's number, its task and its sample; `on_stuck` hears what
        the watchdog finds; `events` hears what happens; groups are counted from `first_group`.
        """
        self.engine = engine
        self.policy = policy
        self._play = play
        self._tasks = tasks
        self._seed = seed
        self._deadlines = deadlines or SchedulerDeadlines()
        self._topology = topology or IndependentRollouts()
        self._hooks = hooks or RolloutHooks()
        self._on_stuck = on_stuck
        self._queue = RolloutQueue(
            policy, topology=self._topology, version=version, first=first_group
        )
        self.events = EventLog() if events is None else events
        self._roll = None
        if policy.rolling:
            load_s = self._deadlines.load_s
            self._roll = RollingUpdate(
                engine, load_s, reached=self._reach_version, failed=self._fail
            )
        self._rates = OutcomeRates(alarms or FailureRateLimits())
        self._bias = RolloutLengthBias()
        self._trees: dict[int, Tree] = {}
        self._complete_groups: list[int] = []
        """Groups that wait for the others of their step, to grow together."""
        self._running: dict[QueuedRollout, RunningRollout] = {}
        self._ending: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._segment = asyncio.Event()
        self._changed = asyncio.Event()
        self._in_flight = 0
        self._error: BaseException | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._moved_s = 0.0
        self._counts: Counter[str] = Counter()
        self._closed = False

    # --- what a run calls -------------------------------------------------------------------------

    def adopt(self, groups: Sequence[GroupState]) -> None:
        """Go on with groups of a run that is resumed; before the first batch."""
        for group in groups:
            self._queue.adopt(group)
            self._trees[group.id] = group.tree
        if not self.policy.closes_between_steps:
            self._admit()

    async def next_batch(self) -> RolloutBatch:
        """Open the gate and return the next complete groups.

        Raises what a trajectory raised that is no failure of its own (a `ConfigError`, say),
        `TooManyFailures` when a rate is beyond its alarm, `SchedulerStalled` when nothing moves,
        `OutOfTasks` when nothing is left to run. When tasks run out, a batch is what there is.
        """
        self._queue.wait_for_batch()
        self._moved_s = self._read_clock()
        if self._watchdog is None:
            self._watchdog = asyncio.create_task(self._watch(), name="agentrl-watchdog")
        self._open.set()
        self._next_segment()
        if self.policy.closes_between_steps:  # where a run that nobody killed opens its groups
            self._admit()
        self._pump()
        while not self._queue.batch_is_ready():
            self._changed.clear()
            self._raise_error()
            await self._changed.wait()
        self._raise_error()
        if self.policy.closes_between_steps:
            await self._shut()
        return self._hand_over()

    async def sleep_engine(self) -> None:
        """Have the engine give up memory until the next weights, where it does that: while nothing
        is sampled, the trainer may need it."""
        if self.policy.closes_between_steps and isinstance(self.engine, SleepingEngine):
            async with BlockDeadline(self._deadlines.load_s, "putting the engine to sleep"):
                await self.engine.sleep()

    async def load_weights(self, weights: Any, version: int) -> None:
        """Load new weights behind a closed gate; what has become too old begins again.

        In `async` the gate opens again at once, else with `next_batch`. Engines that roll take them
        in turn behind an open one, and this returns before they have.
        """
        if self._roll is None:
            await self._shut()
            async with BlockDeadline(self._deadlines.load_s, f"loading version {version}"):
                await self.engine.load(weights, version)
        else:
            await self._roll.settle()
            await self._roll.begin(weights, version)
        for member in self._queue.publish(version, rolls=self._roll is not None):
            self._restart(member)
        self._record_given_up()
        for number in [n for n in self._trees if self._queue.group(n) is None]:
            # It has expired and is in no batch any more.
            del self._trees[number]
            self.events.emit(GroupDropped(group=number, reason=TOO_OLD))
        if not self.policy.closes_between_steps:
            self._admit()
            self._open.set()
        if self._roll is None:
            self._next_segment()
        self._pump()

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Keep the gate closed inside the block, in which the engine serves somebody else."""
        if self._roll is not None:
            await self._roll.settle()
        was_open = self._open.is_set()
        try:
            await self._shut()
            yield
        finally:
            if was_open:
                self._open.set()

    def list_unfinished(self) -> list[Task]:
        """Return the tasks that were taken and are in no batch yet, the oldest first."""
        return [self._trees[number].task for number in sorted(self._trees)]

    def activities(self) -> list[SlotActivity]:
        """Return the activity of every live trajectory."""
        return [run.activity for run in self._running.values()]

    @property
    def work(self) -> RolloutWork:
        """Return the trajectories that have ended for good, and the tokens of all so far."""
        tokens = sum(run.slot.tokens for run in self._running.values())
        if isinstance(self.engine, CountingEngine):
            tokens += self.engine.count_open_tokens()
        return RolloutWork(self._bias.kept, self._bias.kept_tokens, len(self._running), tokens)

    @property
    def saved(self) -> dict[str, Any]:
        """Return the gate's counts so far, as JSON, for `recall`."""
        queue = self._queue
        return {
            "outcomes": self._rates.saved,
            "counts": {name: count for name, count in self._counts.items() if count},
            "restarted": queue.restarted,
            "requeued": queue.requeued,
            "dropped": queue.dropped,
            "bias": asdict(self._bias),
        }

    def recall(self, saved: Mapping[str, Any]) -> None:
        """Count on from what `saved` was at the checkpoint that the run goes on from."""
        queue = self._queue
        self._rates.recall(saved["outcomes"])
        self._counts.update(saved["counts"])
        queue.restarted, queue.requeued = saved["restarted"], saved["requeued"]
        queue.dropped = saved["dropped"]
        self._bias = RolloutLengthBias(**saved["bias"])

    def figures(self) -> dict[str, float]:
        """Return the metrics of the scheduler so far."""
        return {
            **self._queue.figures(),
            "gate/retried": self._counts["retried"],
            "gate/stuck": self._counts["stuck"],
            **{f"failure_rate/{kind}": rate for kind, rate in self._rates.rates().items()},
            **(self._roll.figures() if self._roll else {}),
            **self._bias.figures(),
            **self._topology.figures(),
        }

    def fork(self, slot: RolloutSlot, play: Play, fork: ForkPoint | None = None) -> RolloutSlot:
        """Add a branch of a slot's trajectory and return its slot; `play` waits for its place.

        Without `fork` events tell of the branch as one that began by itself.
        """
        branch = self._begin(self._queue.fork(self._member(slot)), play, fork)
        self._note_change()
        return branch.slot

    async def close(self) -> None:
        """End every trajectory, close its environment, and wait for it. Idempotent.

        A cancelled caller waits for all of it, too; everything in it has a deadline.
        """
        await await_to_the_end(self._close())

    async def _close(self) -> None:
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._ending.add(self._watchdog)
        tasks = [run.task for run in self._running.values()]
        for task in tasks:
            task.cancel()
        waits: list[asyncio.Task[Any]] = [*tasks, *self._ending]
        if waits:
            _, pending_tasks = await asyncio.wait(waits, timeout=self._deadlines.grace_s)
            if pending_tasks:
                names = name_all(self.activities(), now_s=self._read_clock())
                self._on_stuck(f"closing left tasks that suppress cancellation: {names}")
        for task in waits:
            self._forget(task)
        self._running.clear()
        if self._roll is not None:
            await self._roll.close()
        await self._topology.close()

    # --- what a slot calls ------------------------------------------------------------------------

    def upcoming(self, most: int) -> list[Task]:
        return [self._trees[number].task for number in self._queue.upcoming(most)]

    async def pass_gate(self) -> None:
        # It may have closed again before who waits hears that it was open.
        while not self._open.is_set():
            await self._open.wait()

    async def wait_next_segment(self, slot: RolloutSlot) -> None:
        member = self._member(slot)
        self._queue.park(member)
        self._note_change()
        try:
            await self._segment.wait()
        finally:
            self._queue.unpark(member)

    def inherit_version(self, slot: RolloutSlot, oldest: int) -> None:
        self._queue.note_version(self._member(slot), oldest)

    def restart_rollout(self, slot: RolloutSlot) -> int:
        return self._queue.begin_again(self._member(slot))

    def enter_request(self) -> None:
        self._in_flight += 1
        self._quiet.clear()

    def leave_request(self, slot: RolloutSlot, completion: Completion | None) -> None:
        self._in_flight -= 1
        self._moved_s = self._read_clock()
        if self._in_flight == 0:
            self._quiet.set()
        if completion is not None and completion.versions:
            self._queue.note_version(self._member(slot), min(completion.versions))

    def note_turn(self, slot: RolloutSlot) -> None:
        self._moved_s = self._read_clock()
        self._hooks.on_turn(slot.attempt, slot.tree)

    # --- how --------------------------------------------------------------------------------------

    def _read_clock(self) -> float:
        return asyncio.get_running_loop().time()

    def _member(self, slot: RolloutSlot) -> QueuedRollout:
        group = self._queue.group(slot.attempt.group)
        if group is None:
            # Its group is complete or dropped without it, and it has not noticed yet.
            return QueuedRollout(slot.attempt.group, slot.attempt.sample, phase="stopped")
        return group.members[slot.attempt.sample]

    def _reach_version(self, version: int) -> None:
        self._queue.reach(version)
        self._next_segment()
        self._note_change()

    def _pump(self) -> None:
        """Open groups and start trajectories as far as the mode allows, and wake `batch`."""
        self._queue.dry = False
        while not self._closed and self._error is None and (count := self._queue.groups_to_open()):
            self._queue.dry = not self._open_groups(count)
        if self._complete_groups and len(self._complete_groups) == self._queue.state.open:
            self._end_round()
        while not self._closed and (member := self._queue.start_next()) is not None:
            # A branch has its coroutine already, and only waits for its place.
            (self._running.get(member) or self._begin(member, self._play)).place.set()
        if self._queue.next_segment_is_due():
            self._next_segment()
        if self._queue.batch_is_ready():
            self._changed.set()

    def _open_groups(self, count: int) -> bool:
        orders = list(islice(self.events.state.requeued.values(), count))
        if missing := count - len(orders):
            orders += map(GroupRequest.from_task, self._tasks(missing))
        opened = self._queue.open_groups([order.tries for order in orders], orders)
        version = self._queue.state.version
        for number, (order, group) in enumerate(zip(orders, opened, strict=True), 1):
            state = self.events.open_group(
                group.state.number,
                order,
                size=group.state.target,
                step=version,
                after=len(orders) - number,
            )
            self._trees[state.id] = state.tree
        return bool(orders)

    def _admit(self) -> None:
        """Let kept groups go on whose version has come, and tell of what has ended in them."""
        admitted = self._queue.admit()
        self._record_given_up()
        for group, end in admitted:
            if group.resumed is not None:
                self._count_later(group.resumed)
            for member in group.members:
                if member.leaf is not None:
                    tree = self._trees[member.group]
                    self._hooks.on_finished(member.attempt, tree, member.leaf)
            if end.group != "open":
                self._complete(group.state.number, trains=end.group == "ready")

    def _record_given_up(self) -> None:
        """Tell of the trajectories that age has ended without a coroutine."""
        for member in self._queue.take_given_up():
            emitter = self.events.resume_rollout(member.group, member.sample)
            if member.leaf is None:
                emitter.abandon(TOO_OLD)
                continue
            if emitter.rollout.status == "ended":
                # A recorded end stays: it is given up, and a try of its own has failed.
                emitter.abandon("stale")
                seed = self._seed(member.group, self._trees[member.group].task, member.sample)
                emitter = self.events.start_rollout(
                    member.group, sample=member.sample, seed=seed, version=member.born
                )
            emitter.finish(member.leaf)

    def _count_later(self, group: GroupState) -> None:
        outcomes: list[FailureKind | None] = []
        for event in group.later:
            match event:
                case RolloutFinished(leaf=leaf) if isinstance(leaf.outcome, Failed):
                    if not is_stale(leaf.outcome):
                        outcomes.append(leaf.outcome.kind)
                case RolloutFinished(leaf=leaf):
                    outcomes.append(None)
                    self._bias.keep(_count_own_tokens(group, event.trajectory))
                case RolloutAbandoned(failure=failure, reason=reason):
                    if failure is not None:
                        outcomes.append(failure)
                        self._counts["retried"] += 1
                    self._queue.restarted += reason == TOO_OLD
                    if reason == "surplus":
                        self._bias.abort(_count_own_tokens(group, event.trajectory))
                case _:
                    pass
        self._rates.recall(outcomes)

    def _begin(
        self, member: QueuedRollout, play: Play, fork: ForkPoint | None = None
    ) -> RunningRollout:
        tree = self._trees[member.group]
        resumed, member.resumed = member.resumed, None
        if resumed is not None:
            seed = resumed.started.seed
        else:
            seed = self._seed(member.group, tree.task, member.sample)
        point: ResumePoint | None = None
        if resumed is not None and resumed.goes_on:
            events = self.events.resume_rollout(member.group, member.sample)
            point = events.group.resume_point(resumed)
        else:
            events = self.events.start_rollout(
                member.group, sample=member.sample, seed=seed, version=member.born, fork=fork
            )
        slot = RolloutSlot(
            attempt=member.attempt,
            tree=tree,
            seed=seed,
            turn_s=self._deadlines.turn_s,
            fork_s=self._deadlines.fork_s,
            scheduler=self,
            now=asyncio.get_running_loop().time,
            segment=self.policy.segment,
            order=self._queue.order(member),
            events=events,
            asks_again=self.policy.retries,
            since_s=self._read_clock(),
        )
        if point is not None:
            slot.resume_at(point)
        run = self._running[member] = RunningRollout.begin(slot, play)
        run.task.add_done_callback(lambda _: self._finish_task(member))
        return run

    def _finish_task(self, member: QueuedRollout) -> None:
        run = self._running.pop(member, None)
        if run is None or self._closed or self._loop_is_ending():
            return
        self._moved_s = self._read_clock()
        try:
            self._apply_end(member, run)
            self._pump()
        except BaseException as error:  # noqa: BLE001 - in a callback; `next_batch` raises it
            self._fail(error)

    def _loop_is_ending(self) -> bool:
        """Whether asyncio cancels every task of the loop, as it does at a second Ctrl-C.

        Trajectories that end by that have not failed: a resume plays them on.
        """
        return self._watchdog is not None and self._watchdog.cancelling() > 0

    def _apply_end(self, member: QueuedRollout, run: RunningRollout) -> None:
        leaf = self._take_leaf(member, run)
        if leaf is None:
            return
        self._rates.add(leaf.outcome)
        end = self._queue.end_rollout(member, leaf)
        if end.again:
            self._counts["retried"] += 1
            if isinstance(failed := leaf.outcome, Failed):
                why = f"failed: {failed.kind}: {failed.error}"
                run.slot.events.abandon(why, failure=failed.kind)
            return
        if member.phase == "stopped":
            return
        run.slot.events.finish(leaf)
        tree = self._trees[member.group]
        if not isinstance(leaf.outcome, Failed):
            self._bias.keep(run.slot.tokens)
        self._hooks.on_finished(run.slot.attempt, tree, leaf)
        for other in end.surplus:
            self._bias.abort(self._running[other].slot.tokens)
            self._stop(other)
        if end.group != "open":
            self._complete(member.group, trains=end.group == "ready")

    def _take_leaf(self, member: QueuedRollout, run: RunningRollout) -> Leaf | None:
        """Return the leaf of a trajectory; None when it has been begun again or is not needed."""
        if member.phase == "stopped":
            return None
        if not run.task.cancelled() and (error := run.task.exception()) is not None:
            raise error
        if run.restarts:
            if not self._queue.restart(member):
                return member.build_failed_leaf(too_old(member))
            run.slot.events.abandon(TOO_OLD)
            return None
        if not run.task.cancelled():
            return run.task.result()
        return member.build_failed_leaf(
            run.ends_as or Failed("cancelled", "the trajectory was cancelled")
        )

    def _complete(self, number: int, *, trains: bool) -> None:
        if trains and self._hooks.more_by_step:
            self._complete_groups.append(number)  # `_pump` sees when it was the last one
        elif not trains or not self._grow([number]):
            self._settle(number, trains=trains)

    def _end_round(self) -> None:
        """Let the step's groups grow together; once none does, all of them are settled."""
        numbers, self._complete_groups = sorted(self._complete_groups), []
        if grown := self._grow(numbers):
            self._complete_groups = [number for number in numbers if number not in grown]
            return
        for number in numbers:
            self._settle(number, trains=True)

    def _grow(self, numbers: Sequence[int]) -> set[int]:
        """Ask what complete groups get on top, and return those that go on."""
        groups = [group for n in numbers if (group := self._queue.group(n)) is not None]
        counts = self._hooks.more([(group.state, group.leaves) for group in groups])
        grown: set[int] = set()
        for group, count in zip(groups, counts, strict=True):
            # One that had been handed over before has had all it gets.
            was_complete = group.resumed is not None and group.resumed.status == "complete"
            if not was_complete and self._queue.grow(group, count):
                grown.add(group.state.number)
                self.events.emit(GroupResized(group=group.state.number, size=group.state.target))
        return grown

    def _settle(self, number: int, *, trains: bool) -> None:
        """Let the hooks judge a group that has all its trajectories."""
        group = self._queue.group(number)
        assert group is not None
        if trains and self._hooks.on_group(group.state, group.leaves):
            self._queue.accept(group)
            return
        del self._trees[number]
        requeued = self._queue.drop(group, requeue=not trains)
        reason = "not needed" if trains else "too few trajectories that did not fail"
        self.events.emit(GroupDropped(group=number, reason=reason, requeued=requeued, counts=True))

    def _hand_over(self) -> RolloutBatch:
        groups = self._queue.take()
        trees: list[Tree] = []
        for group in groups:
            tree = self._trees.pop(group.state.number)
            self.events.complete_group(group.state.number)
            for leaf in group.leaves:
                tree.end(leaf)
            trees.append(tree)
        if self.policy.groups_per_step and not groups:
            raise OutOfTasks
        return RolloutBatch(
            groups=tuple(groups),
            trees=tuple(trees),
            version=self._queue.state.version,
            oldest=self._queue.oldest,
            max_age=self.policy.max_age,
        )

    async def _shut(self) -> None:
        self._open.clear()
        if self._in_flight == 0:
            return
        what = f"pausing the engine with {self._in_flight} requests in flight"
        try:
            async with BlockDeadline(self._deadlines.close_gate_s, what):
                await self.engine.pause()
                await self._quiet.wait()
        except BaseException:
            # Why the gate did not close counts, and not that the engine did not resume either.
            await await_to_the_end(asyncio.gather(self._resume_engine(), return_exceptions=True))
            raise
        await await_to_the_end(self._resume_engine())

    async def _resume_engine(self) -> None:
        """Have the engine take requests: the gate is closed, so they are not from here."""
        async with BlockDeadline(self._deadlines.close_gate_s, "resuming the engine"):
            await self.engine.resume()

    def _next_segment(self) -> None:
        self._segment.set()
        self._segment = asyncio.Event()

    def _restart(self, member: QueuedRollout) -> None:
        if (run := self._running.get(member)) is not None:
            run.restarts = True
            run.cancel(self._read_clock())

    def _stop(self, member: QueuedRollout) -> None:
        """End a trajectory nobody needs; it closes its environment in its own time."""
        run = self._running.pop(member)
        run.slot.events.abandon("surplus")
        self._ending.add(run.task)
        run.task.add_done_callback(self._forget)
        run.task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        # Nobody needs what it was, and an error nobody asks for would be printed.
        _ = not task.done() or task.cancelled() or task.exception()

    def _note_change(self) -> None:
        asyncio.get_running_loop().call_soon(self._pump_safely)

    def _pump_safely(self) -> None:
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001 - in a callback; `next_batch` raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _watch(self) -> None:
        """Look after what is overdue, and after whether anything moves at all."""
        while True:
            await asyncio.sleep(self._deadlines.watch_every_s)
            now_s = self._read_clock()
            try:
                running = self._running.values()
                self._counts["stuck"] += end_overdue(
                    running, now_s=now_s, deadlines=self._deadlines, on_stuck=self._on_stuck
                )
                if self._queue.state.waiting:
                    check_moving(
                        running, now_s=now_s, moved_s=self._moved_s, deadlines=self._deadlines
                    )
            except Exception as error:  # noqa: BLE001 - in a task; `next_batch` raises it
                self._fail(error)


def _count_own_tokens(group: GroupState, trajectory: int) -> int:
    """Return the sampled tokens of a kept trajectory, without those of one it was forked from."""
    rollout = group.rollouts[trajectory]
    fork = rollout.fork.node if rollout.fork else None
    return sampled_turns(group.tree, rollout.at, fork=fork).total()
