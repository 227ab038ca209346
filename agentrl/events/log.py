"""The one stream of a run's events: recorded, folded into the state, and told to subscribers.

    scheduler, slots, loop ── emit ──► sink (the store) ──► RunState ──► subscribers

`emit` returns when the record survives the end of this process; only then does anything act on the
event. It is synchronous, on the event loop's thread. Turns are told only where there is a sink:
nobody else goes on from them.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.env import ForkStrategy
from agentrl.errors import AgentrlError, FailureKind
from agentrl.events.kinds import (
    MISMATCH,
    RERUN,
    TOO_OLD,
    BranchesPlanned,
    ComponentNoted,
    EnvExchange,
    Event,
    ForkPoint,
    GroupCompleted,
    GroupOpened,
    GroupRequest,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    TurnCompleted,
    TurnExtended,
)
from agentrl.events.state import GroupState, RolloutState, RunState
from agentrl.trajectory import Leaf

_log = logging.getLogger(__name__)
_MOST_ERRORS = 3
"""Errors in a row after which a subscriber hears no more."""


class EventSink(Protocol):
    """Keeps events. Errors raised here stop the run."""

    def append(self, event: Event) -> int:
        """Keep an event, and return its number; it survives the end of the process from then on."""
        ...

    async def wait_settled(self) -> None:
        """Return when what was appended is as durable as the run asks for."""
        ...


class EventSubscriber(Protocol):
    """Hears every event, once it is part of the state.

    An `AgentrlError` raised here stops the run. Any other is logged, and the run goes on: after
    three in a row the subscriber hears no more.
    """

    def on_event(self, event: Event, state: RunState) -> None:
        """Hear an event; must neither wait nor emit."""
        ...


@dataclass(slots=True)
class _Delivery:
    """Events on their way to one subscriber."""

    subscriber: EventSubscriber
    errors: int = 0

    def send(self, event: Event, state: RunState) -> None:
        if self.errors >= _MOST_ERRORS:
            return
        try:
            self.subscriber.on_event(event, state)
            self.errors = 0
        except AgentrlError:
            raise
        except Exception:  # noqa: BLE001 - somebody else's code, which must not stop the run
            self.errors += 1
            name = type(self.subscriber).__name__
            _log.exception("%s failed on a %s", name, type(event).__name__)


@dataclass(slots=True, eq=False)
class EventLog:
    """Events of one run, in order. One thread emits."""

    sink: EventSink | None = None
    state: RunState = field(default_factory=RunState)
    seed: int = 0
    task_position: Callable[[], int] = lambda: 0
    """Number of tasks that the stream has handed out."""
    _deliveries: list[_Delivery] = field(default_factory=list[_Delivery])

    def subscribe(self, subscriber: EventSubscriber) -> None:
        """Let a subscriber hear what is emitted from now on."""
        self._deliveries.append(_Delivery(subscriber))

    def emit(self, event: Event) -> None:
        """Record an event, fold it into the state, and tell the subscribers.

        Raises `EventError` for one that cannot follow on those before it, and what the sink raises:
        then it has not happened.
        """
        self.state.check(event)
        if self.sink is not None:
            self.sink.append(event)
        self.state.apply(event)
        for delivery in self._deliveries:
            delivery.send(event, self.state)

    async def wait_settled(self) -> None:
        if self.sink is not None:
            await self.sink.wait_settled()

    def open_group(
        self, group: int, request: GroupRequest, *, size: int, step: int, after: int = 0
    ) -> GroupState:
        """Open a group; `after` more are opened of the tasks that were taken with its task."""
        self.emit(
            GroupOpened(
                group=group,
                request=request,
                order=max(-1, self.task_position() - 1 - after),
                seed=self.seed,
                size=size,
                step=step,
            )
        )
        return self.state.groups[group]

    def complete_group(self, group: int) -> None:
        """Complete a group that is handed to the trainer; what is left of it is given up."""
        if (state := self.state.open_group(group)) is None:
            return  # a restored group that had been handed over before
        for rollout in state.open_rollouts:
            RolloutEmitter(self, state, rollout).abandon("surplus")
        self.emit(GroupCompleted(group=group))

    def note(
        self,
        group: int,
        note: Mapping[str, Any],
        *,
        sample: int | None = None,
        with_end: bool = False,
    ) -> None:
        """Note what it takes to go on with an open group, in the words of who will read it.

        With `sample` it is noted with that trajectory's latest try; with `with_end` it counts only
        if the end of that one is what is recorded next of it.
        """
        state = self.state.open_group(group)
        if self.sink is None or state is None:
            return
        latest = None if sample is None else state.latest().get(sample)
        self.emit(
            ComponentNoted(
                group=group,
                trajectory=None if latest is None else latest.id,
                note=note,
                with_end=with_end,
            )
        )

    def start_rollout(
        self, group: int, *, sample: int, seed: int, version: int, fork: ForkPoint | None = None
    ) -> "RolloutEmitter":
        """Begin a try at a trajectory, before its environment is reset; give up the one before."""
        state = self.state.groups[group]
        before = None if fork is not None else state.latest().get(sample)
        if before is not None:
            # It had ended, and has become too old since; or it stood before its reset.
            reason = TOO_OLD if before.status == "ended" else "begun again"
            RolloutEmitter(self, state, before).abandon(reason)
        ids, nodes = state.find_untold(None if fork is None else fork.node)
        started = RolloutStarted(
            trajectory=self.state.next_rollout,
            group=group,
            sample=sample,
            seed=seed,
            version=version,
            attempt=0 if before is None else before.started.attempt + 1,
            fork=fork,
            nodes=nodes,
            node_ids=ids,
        )
        self.emit(started)
        return RolloutEmitter(self, state, state.rollouts[started.trajectory])

    def resume_rollout(self, group: int, sample: int) -> "RolloutEmitter":
        """Go on with the latest try at a trajectory."""
        state = self.state.groups[group]
        return RolloutEmitter(self, state, state.latest()[sample])


@dataclass(slots=True, eq=False)
class RolloutEmitter:
    """Emits the events of one trajectory. What comes after it was given up is let go."""

    log: EventLog
    group: GroupState
    rollout: RolloutState
    _last: EnvExchange | None = None

    @property
    def keeps_turns(self) -> bool:
        """True where somebody keeps turns."""
        return self.log.sink is not None

    def complete_turn(self, at: int | None, exchange: EnvExchange) -> None:
        """Tell of its reset or a complete turn, after which it stands at node `at`."""
        if self.rollout.status != "open":
            return
        ids, nodes = self.group.find_untold(at)
        self.log.emit(
            TurnCompleted(
                trajectory=self.rollout.id,
                group=self.group.id,
                at=at,
                exchange=exchange,
                nodes=nodes,
                node_ids=ids,
            )
        )

    def extend_turn(self, at: int) -> None:
        """Tell of the first part of a turn, which ends at node `at`."""
        if self.rollout.status != "open":
            return
        ids, nodes = self.group.find_untold(at)
        self.log.emit(
            TurnExtended(
                trajectory=self.rollout.id, group=self.group.id, at=at, nodes=nodes, node_ids=ids
            )
        )

    def keep_last_turn(self, exchange: EnvExchange) -> None:
        """Take its last turn, to be told with its end."""
        self._last = exchange

    async def wait_settled(self) -> None:
        await self.log.wait_settled()

    def finish(self, leaf: Leaf) -> None:
        """Tell of its end; the leaf need not be on the tree yet."""
        ids, nodes = self.group.find_untold(leaf.node)
        self.log.emit(
            RolloutFinished(
                trajectory=self.rollout.id,
                group=self.group.id,
                leaf=leaf,
                exchange=self._last,
                nodes=nodes,
                node_ids=ids,
            )
        )

    def abandon(self, reason: str, *, failure: FailureKind | None = None) -> None:
        """Tell that it does not count; `failure` is the kind of one that begins again for it."""
        if self.rollout.status == "abandoned":
            return
        self.log.emit(
            RolloutAbandoned(
                trajectory=self.rollout.id,
                group=self.group.id,
                reason=reason,
                turns=self.rollout.own_turns,
                failure=failure,
            )
        )

    def begin_again(self, *, differs: bool, version: int) -> None:
        """Tell that its world could not be brought back, and that it begins again at `version`.

        `differs` when the world answered otherwise than it had.
        """
        self.abandon(MISMATCH if differs else RERUN)
        started = self.rollout.started
        again = self.log.start_rollout(
            self.group.id, sample=started.sample, seed=started.seed, version=version
        )
        self.rollout, self._last = again.rollout, None

    def fork_point(
        self, node: int, *, strategy: ForkStrategy, why: Mapping[str, Any]
    ) -> ForkPoint | None:
        """Return the fork of a branch that leaves it at `node`; None where nobody keeps turns."""
        if not self.keeps_turns:
            return None
        return self.group.fork_point(self.rollout.id, node, strategy=strategy, why=why)

    def plan_branch(self, node: int, *, strategy: ForkStrategy, why: Mapping[str, Any]) -> None:
        """Tell that it, which stands nowhere yet, begins at `node`, where another one has been."""
        if not self.keeps_turns:
            return
        parent = self.group.find_passing(node)
        ids, nodes = self.group.find_untold(node)
        self.log.emit(
            BranchesPlanned(
                trajectory=self.rollout.id,
                group=self.group.id,
                fork=self.group.fork_point(parent, node, strategy=strategy, why=why),
                nodes=nodes,
                node_ids=ids,
            )
        )
        self.rollout = self.group.rollouts[self.rollout.id]
