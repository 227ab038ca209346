"""Groups restored from their records: the tree, and the trajectories in their last state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentrl.errors import FailureKind
from agentrl.events.kinds import (
    BranchesPlanned,
    ComponentNoted,
    EnvExchange,
    Event,
    ForkPoint,
    GroupOpened,
    GroupResized,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    TurnCompleted,
)
from agentrl.rollout.env_replay import ActionHistory, RecordedStep
from agentrl.store.errors import StoreError
from agentrl.task import Task
from agentrl.trajectory import Leaf, Node, Tree

TrajectoryState = Literal["open", "ended", "abandoned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """One trajectory, with what it takes to go on."""

    id: int
    sample: int
    seed: int
    version: int
    """Newest version that all engines had when it began."""
    attempt: int
    fork: ForkPoint | None
    state: TrajectoryState
    at: int | None
    """The node it stands at, in the restored tree; None before its prompt was known."""
    exchanges: tuple[EnvExchange, ...]
    """From the reset on, those of the trajectory it was forked from first: what to replay."""
    stops: tuple[int | None, ...]
    """The node it stood at after each exchange."""
    mid_turn: bool
    """The tokens below `at` are the first part of a turn, to be sampled on from the last one."""
    leaf: Leaf | None
    """For an ended one."""
    reason: str
    """Reason an abandoned one was given up."""
    failure: FailureKind | None
    """Kind of failure of an abandoned one that failed."""
    history: ActionHistory | None
    """History from which its environment is rebuilt by verified replay; None before its reset."""

    def until(self, count: int) -> "RolloutState":
        """Return it as it was after `count` of its exchanges, at least the reset."""
        assert self.history is not None
        history = replace(self.history, steps=self.history.steps[: count - 1])
        return replace(
            self,
            exchanges=self.exchanges[:count],
            stops=self.stops[:count],
            mid_turn=False,
            history=history,
        )

    @property
    def turns(self) -> int:
        """Number of completed turns."""
        return sum(exchange.action is not None for exchange in self.exchanges)

    @property
    def own_turns(self) -> int:
        """Number of completed turns that are not the parent's."""
        exchanges = self.exchanges[self.fork.shared if self.fork else 0 :]
        return sum(exchange.action is not None for exchange in exchanges)

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """Return the reward of each complete turn."""
        return tuple(e.reward for e in self.exchanges if e.action is not None)

    @property
    def components(self) -> dict[str, float]:
        """Return the parts of the reward, later turns over earlier ones."""
        return {name: value for e in self.exchanges for name, value in e.components.items()}

    @property
    def tool_calls(self) -> int:
        """Number of tool calls."""
        return sum(exchange.tool_calls for exchange in self.exchanges)

    @property
    def seconds(self) -> float:
        """Seconds its time budget has used."""
        return self.exchanges[-1].seconds if self.exchanges else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredGroup:
    """One group. Its tree has the store's node ids and holds the leaves of ended trajectories."""

    id: int
    task: Task
    order: int
    seed: int
    size: int
    """Number of trajectories it trains on now."""
    asked: int
    """Number of trajectories it was opened for."""
    max_turns: int | None
    max_turn_tokens: int | None
    step: int
    """Trained steps when it was opened."""
    tree: Tree
    trajectories: tuple[RolloutState, ...]
    round: int = 0
    """This and what follows: as in `GroupOpened`."""
    round_size: int = 0
    tries: int = 0
    retry_of: int | None = None
    notes: tuple[ComponentNoted, ...] = ()
    """Notes that count, in order."""
    later: tuple[RolloutFinished | RolloutAbandoned | ComponentNoted, ...] = ()
    """Ends of tries and notes that were recorded after the checkpoint, in order."""

    @property
    def open(self) -> tuple[RolloutState, ...]:
        """Return the trajectories that go on."""
        return tuple(t for t in self.trajectories if t.state == "open")

    @property
    def newest_version(self) -> int:
        """Return the newest version that sampled one of its tokens; -1 for none."""
        return max((v for node in self.tree.nodes for v in node.versions), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State that a resumed run goes on from."""

    open: tuple[RestoredGroup, ...]
    """Groups that are not complete: open trajectories to go on with, samples to begin."""
    complete: tuple[RestoredGroup, ...]
    """Groups to be trained, those among them that the killed run had trained already."""
    task_position: int
    """Number of tasks the sampler has handed out."""
    reopened: tuple[int, ...]
    """Groups that were trained after the checkpoint: their training is gone with the weights."""
    requeued: tuple[RestoredGroup, ...]
    """Dropped groups whose tasks are to be tried again, and have not been."""
    ahead: tuple[int, ...]
    """Groups with tokens of versions after the checkpoint's. The weights that sampled them are gone
    and their log-probs are not, so a correction stays right; they can train when the trainer has
    come to those versions again."""
    torn_bytes: int
    """Bytes of a record that the killed process was writing; nobody had been told it was there."""

    @property
    def turns(self) -> int:
        """Number of complete turns brought back in trajectories that go on."""
        return sum(t.turns for group in self.open for t in group.open)


@dataclass(slots=True)
class _Path:
    """A trajectory while its records are read."""

    began: RolloutStarted
    root: RolloutStarted
    """The one whose reset made the first world."""
    at: int | None = None
    exchanges: list[EnvExchange] = field(default_factory=list[EnvExchange])
    stops: list[int | None] = field(default_factory=list[int | None])
    mid_turn: bool = False
    state: TrajectoryState = "open"
    leaf: Leaf | None = None
    reason: str = ""
    failure: FailureKind | None = None

    def stop(self, at: int | None, exchange: EnvExchange | None) -> None:
        self.at = at
        self.mid_turn = exchange is None
        if exchange is not None:
            self.exchanges.append(exchange)
            self.stops.append(at)

    def restored(self, task: Task) -> RolloutState:
        return RolloutState(
            id=self.began.trajectory,
            sample=self.began.sample,
            seed=self.began.seed,
            version=self.began.version,
            attempt=self.began.attempt,
            fork=self.began.fork,
            state=self.state,
            at=self.at,
            exchanges=tuple(self.exchanges),
            stops=tuple(self.stops),
            mid_turn=self.mid_turn,
            leaf=self.leaf,
            reason=self.reason,
            failure=self.failure,
            history=self._history(task),
        )

    def _history(self, task: Task) -> ActionHistory | None:
        if not self.exchanges:
            return None
        steps = tuple(
            RecordedStep(action=exchange.action, answer=exchange.fingerprint)
            for exchange in self.exchanges
            if exchange.action is not None
        )
        reset = self.exchanges[0]
        return ActionHistory(
            task=task,
            sample=self.root.sample,
            seed=self.root.seed if reset.env_seed is None else reset.env_seed,
            opening=reset.fingerprint,
            steps=steps,
        )


def restored_group(events: Iterable[Event], *, checkpointed: int = 0) -> RestoredGroup:
    """Return the group that these records, all it has and in order, add up to.

    The first `checkpointed` of them were there when the checkpoint was made.
    """
    opened, *rest = events
    later = rest[max(0, checkpointed - 1) :]
    if not isinstance(opened, GroupOpened):
        raise StoreError(f"a group starts with {type(opened).__name__}, not with GroupOpened")
    tree = Tree(opened.task)
    paths: dict[int, _Path] = {}
    ended: list[_Path] = []
    size = opened.size
    counted = _Counted()
    for event in rest:
        counted.hear(event)
        match event:
            case RolloutStarted():
                _add(tree, event.nodes)
                paths[event.trajectory] = _begun(paths, event)
            case TurnCompleted():
                _add(tree, event.nodes)
                paths[event.trajectory].stop(event.at, event.exchange)
            case RolloutFinished():
                _add(tree, event.nodes)
                _end(paths[event.trajectory], event)
                ended.append(paths[event.trajectory])
            case RolloutAbandoned():
                _give_up(paths[event.trajectory], event)
            case BranchesPlanned():
                _add(tree, event.nodes)
                began = replace(paths[event.trajectory].began, fork=event.fork)
                paths[event.trajectory] = _begun(paths, began)
            case GroupResized():
                size = event.size
            case _:
                pass
    for path in ended:
        if path.leaf is not None:
            tree.end(path.leaf)
    return RestoredGroup(
        id=opened.group,
        task=opened.task,
        order=opened.order,
        seed=opened.seed,
        size=size,
        asked=opened.size,
        max_turns=opened.max_turns,
        max_turn_tokens=opened.max_turn_tokens,
        step=opened.step,
        tree=tree,
        trajectories=tuple(path.restored(opened.task) for path in paths.values()),
        round=opened.round,
        round_size=opened.round_size,
        tries=opened.tries,
        retry_of=opened.retry_of,
        notes=counted.notes,
        later=tuple(
            event
            for event in later
            if isinstance(event, RolloutFinished | RolloutAbandoned | ComponentNoted)
        ),
    )


@dataclass(slots=True)
class _Counted:
    """The notes of a group that count, while its records are read."""

    _heard: list[ComponentNoted] = field(default_factory=list[ComponentNoted])
    _open: dict[int, ComponentNoted] = field(default_factory=dict[int, ComponentNoted])
    """By trajectory: what counts only if its end is next."""

    @property
    def notes(self) -> tuple[ComponentNoted, ...]:
        """Return them; one whose end was never recorded is none."""
        waiting = {id(note) for note in self._open.values()}
        return tuple(note for note in self._heard if id(note) not in waiting)

    def hear(self, event: Event) -> None:
        """Take the next record of the group."""
        trajectory = getattr(event, "trajectory", None)
        waiting = self._open.pop(trajectory, None) if trajectory is not None else None
        if waiting is not None and not isinstance(event, RolloutFinished):
            self._heard = [note for note in self._heard if note is not waiting]
        if isinstance(event, ComponentNoted):
            self._heard.append(event)
            if event.with_end and trajectory is not None:
                self._open[trajectory] = event


def _add(tree: Tree, nodes: Sequence[Node]) -> None:
    for node in nodes:
        tree.add(node)


def _begun(paths: dict[int, _Path], began: RolloutStarted) -> _Path:
    fork = began.fork
    if fork is None:
        return _Path(began, began)
    parent = paths[fork.parent]
    path = _Path(
        began,
        parent.root,
        at=fork.node,
        exchanges=parent.exchanges[: fork.shared],
        stops=parent.stops[: fork.shared],
    )
    # Past what the last shared exchange said, the sibling goes on in the middle of a turn.
    path.mid_turn = path.stops[-1] != fork.node
    return path


def _give_up(path: _Path, event: RolloutAbandoned) -> None:
    path.state, path.leaf = "abandoned", None
    path.reason, path.failure = event.reason, event.failure


def _end(path: _Path, event: RolloutFinished) -> None:
    if event.exchange is not None:
        path.stop(event.leaf.node, event.exchange)
    path.at = event.leaf.node
    path.mid_turn = False
    path.state = "ended"
    path.leaf = event.leaf
