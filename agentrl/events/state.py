"""State of a run's groups, as their events add up to it. Only `RunState.apply` changes it.

    events ──apply──► RunState ── groups ──► GroupState ── rollouts ──► RolloutState
                                               └─ tree (its nodes have the ids of the events)

The same events in the same order give the same state: live, in a resumed run, and for a reader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrl.env import ForkStrategy, TurnRequest
from agentrl.errors import AgentrlError, FailureKind
from agentrl.events.history import ActionHistory, RecordedStep
from agentrl.events.kinds import (
    PLAYED_AGAIN,
    TOO_OLD,
    BranchesPlanned,
    CheckpointStarted,
    ComponentNoted,
    EnvExchange,
    Event,
    ForkPoint,
    GroupCompleted,
    GroupDropped,
    GroupOpened,
    GroupRequest,
    GroupResized,
    GroupsTrained,
    GrowthEvent,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    RunResumed,
    TurnCompleted,
    TurnExtended,
)
from agentrl.task import Task
from agentrl.trajectory import Leaf, Node, Tree

RolloutStatus = Literal["open", "ended", "abandoned"]
GroupStatus = Literal["open", "complete"]
"""Of a group that is neither trained nor dropped."""


class EventError(AgentrlError):
    """An event that cannot follow on those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Point at which a trajectory goes on."""

    node: int | None
    turn: int
    """The one it is about to take, or stands in the middle of."""
    begun: tuple[int, ...] = ()
    """Tokens of that turn which are sampled already; they end the context."""
    turn_rewards: tuple[float, ...]
    components: Mapping[str, float]
    tool_calls: int
    seconds: float
    history: ActionHistory
    request: TurnRequest | None = None
    fork: int | None = None
    """Node it was forked at: what is above is another one's."""


@dataclass(slots=True, kw_only=True)
class RolloutState:
    """One try at a trajectory, with what it takes to go on."""

    started: RolloutStarted
    world: RolloutStarted
    """Start of the one whose reset made the first world: its own but for a branch."""
    status: RolloutStatus = "open"
    at: int | None = None
    """Node it stands at; None before its prompt was known."""
    exchanges: list[EnvExchange] = field(default_factory=list[EnvExchange])
    """From the reset on, those of the trajectory it was forked from first: what to replay."""
    stops: list[int | None] = field(default_factory=list[int | None])
    """Node it stood at after each exchange."""
    mid_turn: bool = False
    """The tokens below `at` are the first part of a turn, to be sampled on from the last one."""
    leaf: Leaf | None = None
    reason: str = ""
    failure: FailureKind | None = None

    @property
    def id(self) -> int:
        """Number of the try; trajectories are counted over the run."""
        return self.started.trajectory

    @property
    def sample(self) -> int:
        """Index of the trajectory within its group."""
        return self.started.sample

    @property
    def fork(self) -> ForkPoint | None:
        """Fork it began at; None for one that began at the prompt."""
        return self.started.fork

    @property
    def goes_on(self) -> bool:
        """True when its environment can be rebuilt, and it is played on from where it stands."""
        return self.status == "open" and bool(self.exchanges)

    @property
    def turns(self) -> int:
        """Number of complete turns."""
        return sum(exchange.action is not None for exchange in self.exchanges)

    @property
    def own_turns(self) -> int:
        """Number of complete turns that are not the parent's."""
        exchanges = self.exchanges[self.fork.shared if self.fork else 0 :]
        return sum(exchange.action is not None for exchange in exchanges)

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """Reward of each complete turn."""
        return tuple(step.reward for step in self.exchanges if step.action is not None)

    @property
    def components(self) -> dict[str, float]:
        """Parts of the reward, later turns over earlier ones."""
        return {name: value for step in self.exchanges for name, value in step.components.items()}

    @property
    def tool_calls(self) -> int:
        """Number of tool calls."""
        return sum(step.tool_calls for step in self.exchanges)

    @property
    def seconds(self) -> float:
        """Seconds its time budget has used."""
        return self.exchanges[-1].seconds if self.exchanges else 0.0

    def history(self, task: Task) -> ActionHistory | None:
        """Return the history from which its environment is rebuilt; None before its reset."""
        if not self.exchanges:
            return None
        reset = self.exchanges[0]
        return ActionHistory(
            task=task,
            sample=self.world.sample,
            seed=self.world.seed if reset.env_seed is None else reset.env_seed,
            opening=reset.fingerprint,
            steps=tuple(
                RecordedStep(action=step.action, answer=step.fingerprint)
                for step in self.exchanges
                if step.action is not None
            ),
        )

    def truncate_to(self, turn: int) -> "RolloutState | None":
        """Return it as it was when `turn` began; None where it has not come so far."""
        if len(self.exchanges) <= turn:
            return None
        count = turn + 1
        stops = self.stops[:count]
        return replace(
            self, at=stops[-1], exchanges=self.exchanges[:count], stops=stops, mid_turn=False
        )

    def stop(self, at: int | None, exchange: EnvExchange) -> None:
        """Take an exchange, after which it stands at a node."""
        self.at, self.mid_turn = at, False
        self.exchanges.append(exchange)
        self.stops.append(at)


@dataclass(slots=True, kw_only=True, eq=False)
class GroupState:
    """One group: its tree, and every try at its trajectories."""

    opened: GroupOpened
    size: int
    tree: Tree
    """Grows as trajectories are played; `told` are the nodes that events have named."""
    told: set[int] = field(default_factory=set[int])
    status: GroupStatus = "open"
    rollouts: dict[int, RolloutState] = field(default_factory=dict[int, RolloutState])
    """By number, in the order they began."""
    later: list[Event] = field(default_factory=list[Event])
    """Ends and notes that a resumed run has from after its checkpoint, in order."""
    _notes: list[ComponentNoted] = field(default_factory=list[ComponentNoted])
    _unsure: dict[int, ComponentNoted] = field(default_factory=dict[int, ComponentNoted])
    """By trajectory: the note that counts only if its end is next."""

    @property
    def id(self) -> int:
        """Number of the group; they are counted over the run."""
        return self.opened.group

    @property
    def task(self) -> Task:
        """Task that all its trajectories play."""
        return self.opened.request.task

    @property
    def request(self) -> GroupRequest:
        """Request that it was opened for."""
        return self.opened.request

    @property
    def open_rollouts(self) -> list[RolloutState]:
        """Tries that have neither ended nor been abandoned."""
        return [rollout for rollout in self.rollouts.values() if rollout.status == "open"]

    @property
    def notes(self) -> list[ComponentNoted]:
        """Notes that count, in order."""
        unsure = {id(note) for note in self._unsure.values()}
        return [note for note in self._notes if id(note) not in unsure]

    @property
    def newest_version(self) -> int:
        """Newest version that sampled one of its tokens; -1 for none."""
        return max((v for id in self.told for v in self.tree.node(id).versions), default=-1)

    @property
    def waits_for(self) -> int:
        """Version of the trainer from which on it runs and trains.

        Its newest token's, or the one it was opened at: weights that came after a checkpoint are
        gone, and until the trainer has come to their version again, nothing goes on from them.
        """
        return max(self.opened.step, self.newest_version)

    def latest(self) -> dict[int, RolloutState]:
        """Return the latest try at each trajectory, by sample."""
        return {rollout.sample: rollout for rollout in self.rollouts.values()}

    def failures(self, sample: int) -> int:
        """Return the number of tries at a trajectory that failed and were begun again."""
        failures = 0
        for rollout in self.rollouts.values():
            if rollout.sample == sample:
                failures += rollout.failure is not None
                failures *= rollout.reason != PLAYED_AGAIN
        return failures

    def restarts(self, sample: int) -> int:
        """Return the number of tries at a trajectory that had become too old."""
        tries = (rollout for rollout in self.rollouts.values() if rollout.sample == sample)
        return sum(rollout.reason == TOO_OLD for rollout in tries)

    def oldest_version(self, rollout: RolloutState) -> int | None:
        """Return the version of the oldest sampled token of a trajectory that was not abandoned."""
        if rollout.at is None or rollout.status == "abandoned":
            return None
        path = self.tree.path(rollout.at)
        return min((v for node in path for v in node.versions), default=None)

    def resume_point(self, rollout: RolloutState) -> ResumePoint | None:
        """Return the point at which a trajectory goes on; None before its reset."""
        history = rollout.history(self.task)
        if history is None:
            return None
        return ResumePoint(
            node=rollout.at,
            turn=rollout.turns,
            begun=self._find_partial_turn(rollout),
            turn_rewards=rollout.turn_rewards,
            components=rollout.components,
            tool_calls=rollout.tool_calls,
            seconds=rollout.seconds,
            history=history,
            request=rollout.exchanges[-1].observation.request,
            fork=rollout.fork.node if rollout.fork else None,
        )

    def find_untold(self, node: int | None) -> tuple[tuple[int, ...], tuple[Node, ...]]:
        """Return the ids and nodes to tell of for `node` to be known, ancestors first."""
        ids: list[int] = []
        # What is above a node that was told of was told of: no walk to the root for every turn.
        while node is not None and node not in self.told:
            ids.append(node)
            node = self.tree.node(node).parent
        ids.reverse()
        return tuple(ids), tuple(map(self.tree.node, ids))

    def fork_point(
        self, parent: int, node: int, *, strategy: ForkStrategy, why: Mapping[str, Any]
    ) -> ForkPoint:
        """Return the fork of a trajectory that leaves `parent` at `node`.

        Raises `EventError` for a node that is not below the parent's prompt.
        """
        path = {*self.tree.path_ids(node)}
        stops = self.rollouts[parent].stops
        shared = next(
            (count for count, at in enumerate(stops) if at is not None and at not in path),
            len(stops),
        )
        if shared == 0:
            raise EventError(
                f"node {node} is not below the prompt of trajectory {parent}, or no event has "
                "told of it; fork a trajectory where it has been"
            )
        return ForkPoint(parent=parent, node=node, shared=shared, strategy=strategy, why=dict(why))

    def find_passing(self, node: int) -> int:
        """Return the last trajectory that stood at `node` after an exchange, given up or not."""
        for id, rollout in reversed(self.rollouts.items()):
            if node in rollout.stops:
                return id
        raise EventError(
            f"no trajectory of task {self.task.id} has completed a turn at node {node}, so none "
            "can branch there; tell of the turn first"
        )

    def _find_partial_turn(self, rollout: RolloutState) -> tuple[int, ...]:
        if not rollout.mid_turn or rollout.at is None:
            return ()
        before = rollout.stops[-1] if rollout.stops else None
        prefix = () if before is None else self.tree.tokens(before)
        return self.tree.tokens(rollout.at)[len(prefix) :]

    def check(self, event: Event) -> None:
        """Raise `EventError` for an event of the group that cannot follow."""
        match event:
            case GroupDropped():
                return
            case GroupCompleted() if still := [rollout.id for rollout in self.open_rollouts]:
                raise EventError(
                    f"trajectories {still} of group {self.id} are open, but a group is complete "
                    "only when all its trajectories have ended: finish or abandon them first"
                )
            case RolloutAbandoned(trajectory=id) if self._get_status(id) == "abandoned":
                raise EventError(f"trajectory {id} was already abandoned; abandon it only once")
            case (
                TurnCompleted(trajectory=id)
                | TurnExtended(trajectory=id)
                | RolloutFinished(trajectory=id)
                | BranchesPlanned(trajectory=id)
            ) if (status := self._get_status(id)) != "open":
                raise EventError(
                    f"trajectory {id} is {status}, but only an open trajectory can continue"
                )
            case _:
                pass
        if self.status != "open":
            raise EventError(
                f"group {self.id} is {self.status}, but only an open group can grow or complete"
            )

    def apply(self, event: Event, *, keeps_observations: bool) -> None:
        """Take an event of the group."""
        if self._unsure:
            self._settle_note(event)
        if isinstance(event, GrowthEvent):
            for id, node in zip(event.node_ids, event.nodes, strict=True):
                self.tree.restore(id, node)
            self.told.update(event.node_ids)
        match event:
            case TurnCompleted(trajectory=id, at=at, exchange=exchange):
                self.rollouts[id].stop(
                    at, exchange if keeps_observations else exchange.without_observation()
                )
            case TurnExtended(trajectory=id, at=at):
                self.rollouts[id].at, self.rollouts[id].mid_turn = at, True
            case RolloutStarted():
                self._start(event)
            case BranchesPlanned(trajectory=id, fork=fork):
                self._start(replace(self.rollouts[id].started, fork=fork))
            case RolloutFinished(trajectory=id, leaf=leaf, exchange=exchange):
                rollout = self.rollouts[id]
                if exchange is not None:
                    rollout.stop(
                        leaf.node,
                        exchange if keeps_observations else exchange.without_observation(),
                    )
                rollout.status, rollout.leaf = "ended", leaf
                rollout.at, rollout.mid_turn = leaf.node, False
            case RolloutAbandoned(trajectory=id, reason=reason, failure=failure):
                rollout = self.rollouts[id]
                rollout.status, rollout.leaf = "abandoned", None
                rollout.reason, rollout.failure = reason, failure
            case ComponentNoted(trajectory=id, with_end=with_end):
                self._notes.append(event)
                if with_end and id is not None:
                    self._unsure[id] = event
            case GroupResized(size=size):
                self.size = size
            case GroupCompleted():
                self.status = "complete"
            case _:
                pass

    def _start(self, event: RolloutStarted) -> None:
        fork = event.fork
        if fork is None:
            self.rollouts[event.trajectory] = RolloutState(started=event, world=event)
            return
        parent = self.rollouts[fork.parent]
        self.rollouts[event.trajectory] = RolloutState(
            started=event,
            world=parent.world,
            at=fork.node,
            exchanges=parent.exchanges[: fork.shared],
            stops=parent.stops[: fork.shared],
            # Past what the last shared exchange said, it goes on in the middle of a turn.
            mid_turn=parent.stops[fork.shared - 1] != fork.node,
        )

    def _get_status(self, trajectory: int) -> str:
        rollout = self.rollouts.get(trajectory)
        return "not of its group" if rollout is None else rollout.status

    def _settle_note(self, event: Event) -> None:
        """Keep or forget the note that waits for a trajectory's end, by its next event."""
        trajectory: int | None = getattr(event, "trajectory", None)
        note = None if trajectory is None else self._unsure.pop(trajectory, None)
        if note is not None and not isinstance(event, RolloutFinished):
            self._notes = [other for other in self._notes if other is not note]


@dataclass(slots=True, kw_only=True)
class RunState:
    """Groups of a run that are neither trained nor dropped, and numbers of the next ones."""

    groups: dict[int, GroupState] = field(default_factory=dict[int, GroupState])
    requeued: dict[int, GroupRequest] = field(default_factory=dict[int, GroupRequest])
    """Requests for second tries that no group was opened for yet, by the dropped group."""
    retried: set[int] = field(default_factory=set[int])
    next_group: int = 0
    next_rollout: int = 0
    task_position: int = 0
    """Number of tasks that the stream has handed out for the groups there are."""
    keeps_observations: bool = False
    """True for who shows them: to go on takes no more than their fingerprints."""

    def open_group(self, group: int) -> GroupState | None:
        """Return a group that can grow; None for any other."""
        state = self.groups.get(group)
        return None if state is None or state.status != "open" else state

    def check(self, event: Event) -> None:
        """Raise `EventError` for an event that cannot follow on those before it."""
        match event:
            case GroupOpened(group=group):
                if group < self.next_group:
                    raise EventError(f"group {group} was opened before; groups are counted up")
            case GroupsTrained(groups=groups):
                if len({*groups}) != len(groups):
                    raise EventError(
                        f"groups {sorted(groups)} contain a duplicate, but a group trains only "
                        "once; name each once"
                    )
                for group in groups:
                    if self._require_group(group).status != "complete":
                        raise EventError(f"group {group} is open, but only a complete group trains")
            case CheckpointStarted() | RunResumed():
                pass
            case _:
                self._require_group(event.group).check(event)

    def apply(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case GroupOpened(group=group, request=request, size=size):
                tree = Tree(request.task)
                self.groups[group] = GroupState(opened=event, size=size, tree=tree)
                self.next_group = max(self.next_group, group + 1)
                self.task_position = max(self.task_position, event.order + 1)
                if request.retry_of is not None:
                    self.retried.add(request.retry_of)
                    self.requeued.pop(request.retry_of, None)
            case GroupDropped(group=group, requeued=requeued):
                dropped = self.groups.pop(group)
                if requeued and group not in self.retried:
                    self.requeued[group] = dropped.request.build_retry(group)
            case GroupsTrained(groups=groups):
                for group in groups:
                    del self.groups[group]
            case CheckpointStarted() | RunResumed():
                pass
            case _:
                if isinstance(event, RolloutStarted):
                    self.next_rollout = max(self.next_rollout, event.trajectory + 1)
                self.groups[event.group].apply(event, keeps_observations=self.keeps_observations)

    def _require_group(self, group: int) -> GroupState:
        state = self.groups.get(group)
        if state is None:
            raise EventError(
                f"group {group} is not open: it was never opened, or was trained or dropped before"
            )
        return state
