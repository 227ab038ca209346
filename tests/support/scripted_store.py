"""A store that is written by hand: groups and trajectories without a scheduler."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.env import ForkStrategy
from agentrl.errors import FailureKind
from agentrl.events.kinds import (
    CheckpointStarted,
    EnvExchange,
    GroupCompleted,
    GroupDropped,
    GroupRequest,
    GroupResized,
    GroupsTrained,
    RolloutStarted,
)
from agentrl.events.log import EventLog, RolloutEmitter
from agentrl.events.state import GroupState, RunState
from agentrl.store.lock import WriterLock
from agentrl.store.opening import Damaged
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


class ScriptedStore(StoreWriter):
    """A store with an event log, and a method for everything that may happen in it.

    Trees are the caller's: a node has the same id in the tree of the state.
    """

    def __init__(
        self, folder: Path, settings: StoreSettings, lock: WriterLock, *, damaged: Damaged
    ) -> None:
        super().__init__(folder, settings, lock, damaged=damaged)
        self.log = EventLog(self)

    @property
    def next_group(self) -> int:
        return self.log.state.next_group

    def restore(self, *, position: int = 0, step: int = 0) -> RunState:
        self.log.state = super().restore(position=position, step=step)
        return self.log.state

    def open_group(
        self,
        task: Task,
        *,
        order: int,
        seed: int,
        size: int,
        step: int,
        **request: Any,
    ) -> int:
        self.log.seed, self.log.task_position = seed, lambda: order + 1
        group = self.next_group
        self.log.open_group(group, GroupRequest(task=task, **request), size=size, step=step)
        return group

    def begin(
        self, group: int, *, sample: int, seed: int, attempt: int = 0, version: int = 0
    ) -> int:
        id = self.log.state.next_rollout
        self.log.emit(
            RolloutStarted(
                trajectory=id,
                group=group,
                sample=sample,
                seed=seed,
                version=version,
                attempt=attempt,
            )
        )
        return id

    def turn(self, trajectory: int, tree: Tree, node: int | None, exchange: EnvExchange) -> int:
        self._emitter(trajectory, tree, node).complete_turn(node, exchange)
        return self.position - 1

    def part(self, trajectory: int, tree: Tree, node: int) -> int:
        self._emitter(trajectory, tree, node).extend_turn(node)
        return self.position - 1

    def fork(
        self,
        parent: int,
        tree: Tree,
        node: int,
        *,
        sample: int,
        seed: int,
        strategy: ForkStrategy,
        why: Mapping[str, Any] | None = None,
        version: int = 0,
    ) -> int:
        emitter = self._emitter(parent, tree, node)
        fork = emitter.fork_point(node, strategy=strategy, why=why or {})
        branch = self.log.start_rollout(
            emitter.group.id, sample=sample, seed=seed, version=version, fork=fork
        )
        return branch.rollout.id

    def branched(
        self,
        trajectory: int,
        tree: Tree,
        node: int,
        *,
        strategy: ForkStrategy,
        why: Mapping[str, Any] | None = None,
    ) -> None:
        self._emitter(trajectory, tree, node).plan_branch(node, strategy=strategy, why=why or {})

    def finish(
        self, trajectory: int, tree: Tree, leaf: Leaf, exchange: EnvExchange | None = None
    ) -> int:
        emitter = self._emitter(trajectory, tree, leaf.node)
        if exchange is not None:
            emitter.keep_last_turn(exchange)
        emitter.finish(leaf)
        return self.position - 1

    def abandon(self, trajectory: int, reason: str, *, failure: FailureKind | None = None) -> int:
        self._emitter(trajectory, None, None).abandon(reason, failure=failure)
        return self.position - 1

    def enlarge(self, group: int, size: int) -> None:
        self.log.emit(GroupResized(group=group, size=size))

    def list_unfinished(self, group: int) -> list[int]:
        return [rollout.id for rollout in self.log.state.groups[group].open_rollouts]

    def group_complete(self, group: int) -> None:
        self.log.emit(GroupCompleted(group=group))

    def drop(
        self, group: int, reason: str, *, requeued: bool = False, counts: bool = False
    ) -> None:
        self.log.emit(GroupDropped(group=group, reason=reason, requeued=requeued, counts=counts))

    def trained(self, groups: Sequence[int], *, step: int) -> None:
        self.log.emit(GroupsTrained(groups=tuple(groups), step=step))

    def checkpoint(self, step: int) -> int:
        self.log.emit(CheckpointStarted(step=step))
        self.sync()
        return self.position

    def _emitter(self, trajectory: int, tree: Tree | None, node: int | None) -> RolloutEmitter:
        group = self._group_of(trajectory)
        if tree is not None and node is not None:
            for id in tree.path_ids(node):
                group.tree.restore(id, tree.node(id))
        return RolloutEmitter(self.log, group, group.rollouts[trajectory])

    def _group_of(self, trajectory: int) -> GroupState:
        groups = self.log.state.groups.values()
        return next(group for group in groups if trajectory in group.rollouts)


def open_groups(state: RunState) -> list[GroupState]:
    """Return the groups of a restored run that are not complete."""
    return [group for group in state.groups.values() if group.status == "open"]


def complete_groups(state: RunState) -> list[GroupState]:
    """Return the groups of a restored run that may train."""
    return [group for group in state.groups.values() if group.status == "complete"]
