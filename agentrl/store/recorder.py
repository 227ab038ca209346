"""Records of a scheduler in the store. See `agentrl.rollout.recorder` for the contract."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.env import Action, ForkStrategy, Observation, Step
from agentrl.errors import FailureKind
from agentrl.events.kinds import EnvExchange
from agentrl.rollout.recorder import BranchDeparture, ResumePoint, TrajectoryRecord
from agentrl.rollout.scheduler.topology import GroupRequest, RolloutKey
from agentrl.store.errors import StoreError
from agentrl.store.restored import RestoredGroup
from agentrl.store.writer import StoreWriter
from agentrl.trajectory import Leaf, Tree

RERUN = "rerun"
"""Reason to abandon a trajectory whose environment could not be rebuilt: it broke each time."""
MISMATCH = "replay_mismatch"
"""Reason to abandon a trajectory whose environment answered otherwise than it had."""
TOO_OLD = "too old"
"""Reason to abandon a trajectory that its age bound has stopped, ended or not."""


@dataclass(slots=True, eq=False)
class StoredTrajectory:
    """One trajectory's record. What comes after it was given up is let go."""

    recorder: "StoreRecorder"
    tree: Tree
    id: int
    group: int
    sample: int
    seed: int
    attempt: int
    """Tries before this one, those that were begun again for any reason among them."""
    over: bool = False
    ended: bool = False
    _last: EnvExchange | None = None

    def reset(
        self, at: int | None, observation: Observation, *, env_seed: int, seconds: float
    ) -> None:
        """Record that its world was reset."""
        self._turn(at, EnvExchange.resetting(observation, env_seed=env_seed, seconds=seconds))

    def stepped(self, at: int | None, action: Action, answer: Step, *, seconds: float) -> None:
        """Record a complete turn."""
        self._turn(at, EnvExchange.stepping(action, answer, seconds=seconds))

    def last_step(self, action: Action, answer: Step, *, seconds: float) -> None:
        """Take its last turn, to be recorded with its end."""
        self._last = EnvExchange.stepping(action, answer, seconds=seconds)

    def branches(self, node: int, *, strategy: ForkStrategy, why: Mapping[str, Any]) -> None:
        """Record that it begins where another one has been."""
        self.recorder.store.branched(self.id, self.tree, node, strategy=strategy, why=why)

    def part(self, at: int) -> None:
        """Record the first part of a turn."""
        if not self.over:
            self.recorder.store.part(self.id, self.tree, at)

    async def settled(self) -> None:
        """Return when what was recorded is as durable as the run asks for."""
        await self.recorder.store.settled()

    def begun_again(self, why: str, *, differs: bool, version: int) -> None:
        """Record that its world could not be brought back, and that it begins again."""
        store = self.recorder.store
        store.abandon(self.id, MISMATCH if differs else RERUN)
        self.recorder.reruns.append(why)
        self.recorder.mismatches += differs
        self.attempt += 1
        self.id = store.begin(
            self.group,
            sample=self.sample,
            seed=self.seed,
            attempt=self.attempt,
            version=version,
        )

    def finished(self, leaf: Leaf) -> None:
        """Record its end."""
        self.recorder.store.finished(self.id, self.tree, leaf, self._last)
        self.ended = True

    def given_up(self, why: str, *, failure: FailureKind | None = None) -> None:
        """Record that it does not count."""
        if not self.over:
            self.over = True
            self.recorder.store.abandon(self.id, why, failure=failure)

    def _turn(self, at: int | None, exchange: EnvExchange) -> None:
        if not self.over:
            self.recorder.store.turn(self.id, self.tree, at, exchange)


@dataclass(slots=True, eq=False)
class StoreRecorder:
    """The record of one gate's groups. The gate's numbers are not the store's ids."""

    store: StoreWriter
    position: Callable[[], int]
    """Number of tasks that have been handed out."""
    seed: int
    """Seed of the run."""
    reruns: list[str] = field(default_factory=list[str])
    """Reasons of trajectories that began again because they could not be brought back."""
    mismatches: int = 0
    """Of those, the ones whose world answered otherwise than it had."""
    _ids: dict[int, int] = field(default_factory=dict[int, int])
    """The store's ids of groups that are not trained, by the gate's numbers."""
    _requeued: dict[int, int] = field(default_factory=dict[int, int])
    """The same of dropped groups whose tasks wait to be tried again."""
    _complete: set[int] = field(default_factory=set[int])
    _latest: dict[tuple[int, int], StoredTrajectory] = field(
        default_factory=dict[tuple[int, int], StoredTrajectory]
    )
    """By group's number and sample."""

    def kept(self, group: RestoredGroup, tree: Tree, *, complete: bool) -> None:
        """Take a restored group; the gate goes on with it under the store's id and on `tree`."""
        self._ids[group.id] = group.id
        if complete:
            self._complete.add(group.id)
        for trajectory in group.trajectories:
            self._latest[group.id, trajectory.sample] = StoredTrajectory(
                self,
                tree,
                trajectory.id,
                group.id,
                trajectory.sample,
                trajectory.seed,
                trajectory.attempt,
                over=trajectory.state == "abandoned",
                ended=trajectory.state == "ended",
            )

    def opened(
        self,
        group: int,
        order: GroupRequest,
        *,
        size: int,
        after: int,
        version: int,
    ) -> None:
        """Record a group."""
        retried = order.retry_of
        self._ids[group] = self.store.open_group(
            order.task,
            order=max(-1, self.position() - 1 - after),
            seed=self.seed,
            size=size,
            step=version,
            max_turns=order.max_turns,
            max_turn_tokens=order.max_turn_tokens,
            round=order.round,
            round_size=order.round_size,
            tries=order.tries,
            retry_of=None if retried is None else self._requeued.pop(retried, retried),
        )

    def enlarged(self, group: int, size: int) -> None:
        """Record that a group trains on `size` trajectories now."""
        self.store.enlarge(self._ids[group], size)

    def noted(
        self,
        group: int,
        note: Mapping[str, Any],
        *,
        sample: int | None = None,
        with_end: bool = False,
    ) -> None:
        """Record what it takes to go on with a group; nothing of one that is over."""
        if group in self._complete or group not in self._ids:
            return
        latest = None if sample is None else self._latest.get((group, sample))
        id = None if latest is None else latest.id
        self.store.note(self._ids[group], note, trajectory=id, with_end=with_end)

    def begun(
        self, attempt: RolloutKey, tree: Tree, *, seed: int, version: int, stand: ResumePoint | None
    ) -> TrajectoryRecord:
        """Record that a trajectory begins, or go on with its record."""
        before = self._latest.get((attempt.group, attempt.sample))
        if stand is not None:
            if before is None:
                raise StoreError(f"{attempt} is to be resumed, but nothing of it is recorded")
            return before
        if before is not None:
            # It had ended, and has become too old since; or it stood before its reset.
            before.given_up(TOO_OLD if before.ended else "begun again")
        number = 0 if before is None else before.attempt + 1
        group = self._ids[attempt.group]
        id = self.store.begin(
            group, sample=attempt.sample, seed=seed, attempt=number, version=version
        )
        return self._remember(attempt, tree, id, seed, number)

    def forked(
        self, attempt: RolloutKey, tree: Tree, *, seed: int, version: int, leaving: BranchDeparture
    ) -> TrajectoryRecord:
        """Record that a trajectory begins as a branch of another one."""
        if not isinstance(leaving.parent, StoredTrajectory):
            raise StoreError(f"the parent of {attempt} is recorded elsewhere")
        id = self.store.fork(
            leaving.parent.id,
            tree,
            leaving.node,
            sample=attempt.sample,
            seed=seed,
            strategy=leaving.strategy,
            why=leaving.why,
            version=version,
        )
        return self._remember(attempt, tree, id, seed, 0)

    def dropped(
        self, group: int, why: str, *, requeued: bool = False, counts: bool = False
    ) -> None:
        """Record that a group will not train."""
        self.store.drop(self._ids[group], why, requeued=requeued, counts=counts)
        if requeued:
            self._requeued[group] = self._ids[group]
        self._forget(group)

    def completed(self, group: int) -> None:
        """Record that a group is handed to the trainer; what is left of it is given up."""
        if group in self._complete:
            return
        id = self._ids[group]
        for trajectory in self.store.unfinished(id):
            self.store.abandon(trajectory, "surplus")
        self.store.group_complete(id)
        self._complete.add(group)

    def stored(self, group: int) -> int:
        """Return the store's id of a group that is not trained yet."""
        return self._ids[group]

    def trained(self, groups: list[int], *, step: int) -> None:
        """Record that the optimiser has used these groups, in the step that ended as `step`."""
        self.store.trained([self._ids[group] for group in groups], step=step)
        for group in groups:
            self._forget(group)

    def _remember(
        self, attempt: RolloutKey, tree: Tree, id: int, seed: int, number: int
    ) -> StoredTrajectory:
        group = self._ids[attempt.group]
        trajectory = StoredTrajectory(self, tree, id, group, attempt.sample, seed, number)
        self._latest[attempt.group, attempt.sample] = trajectory
        return trajectory

    def _forget(self, group: int) -> None:
        del self._ids[group]
        self._complete.discard(group)
        for key in [key for key in self._latest if key[0] == group]:
            del self._latest[key]
