"""Interface between a scheduler, its episodes and the durable record of them.

`agentrl.store` implements it. A run without a record has none of these objects and pays nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.env import Action, ForkStrategy, Observation, Step, TurnRequest
from agentrl.errors import FailureKind
from agentrl.rollout.env_replay import ActionHistory
from agentrl.rollout.scheduler.topology import GroupRequest, RolloutKey
from agentrl.trajectory import Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Point at which a trajectory that a record kept goes on."""

    node: int | None
    turn: int
    """The one it is about to take, or stands in the middle of."""
    begun: tuple[int, ...]
    """Tokens of that turn which are sampled already; they end the context."""
    turn_rewards: tuple[float, ...]
    components: Mapping[str, float]
    tool_calls: int
    seconds: float
    """Seconds of its time budget that are used."""
    history: ActionHistory
    """History from which its environment is rebuilt."""
    request: TurnRequest | None = None
    """Request of the observation that its turn answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMember:
    """One trajectory of a kept group."""

    sample: int
    seed: int
    version: int
    """Newest version that all engines had when its latest try began."""
    attempt: int
    """Tries before this one."""
    failures: int
    """Of those, the ones that failed."""
    restarts: int = 0
    """Of those, the ones that had become too old."""
    leaf: Leaf | None = None
    """Its end; None for one that goes on, or begins."""
    stand: ResumePoint | None = None
    """None for one that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCounts:
    """Counts that a group adds to those of a checkpoint: of records after it."""

    outcomes: tuple[FailureKind | None, ...] = ()
    """Outcomes of attempts, in the order they ended; None for one that did not fail."""
    tokens: tuple[int, ...] = ()
    """Sampled ones of each that ended and did not fail."""
    retried: int = 0
    """Trajectories that began again after a failure."""
    restarted: int = 0
    """Trajectories that began again for their age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTry:
    """One try at a trajectory of a kept group: it goes on, has ended, or was given up."""

    id: int
    """As the record counts them, in the order they began."""
    sample: int
    is_open: bool
    why: Mapping[str, Any] | None
    """Decision of the branch that it began as, see `BranchDeparture`."""
    stands: tuple[ResumePoint, ...]
    """State after the reset and after every complete turn, those of its parent among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNote:
    """Note on a group."""

    said: Mapping[str, Any]
    by: int | None
    """The try it was noted with, if any."""
    is_later: bool = False
    """It was noted after the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """A group that a record kept, for a gate to go on with."""

    number: int
    """As it was counted by the gate that opened it."""
    size: int
    """Number of trajectories it trains on."""
    asked: int
    """Number of trajectories it was opened for, before it was enlarged."""
    max_turns: int | None
    """Most policy messages of each; None is the run's number."""
    max_turn_tokens: int | None
    """Most tokens of one of those; None is the run's number."""
    tree: Tree
    """Without leaves: the gate ends them when it hands the group over."""
    step: int
    """The version it was opened at."""
    complete: bool
    members: tuple[KeptMember, ...]
    round: int = 0
    """Request for tasks within its step that brought it, from 1; 0 where rounds are not counted."""
    round_size: int = 0
    """Number of tasks that its round was asked for."""
    tries: int = 0
    """Times its task was tried before."""
    retry_of: int | None = None
    """The group that it takes the place of; None for a first try."""
    paths: tuple[KeptTry, ...] = ()
    """Every try, in the order they began; only of a group that something was noted of."""
    notes: tuple[KeptNote, ...] = ()
    """In order."""
    branched: bool = False
    """True when a trajectory left another one."""
    counts: KeptCounts = KeptCounts()
    """Counts of it that the checkpoint lacks."""

    @property
    def order(self) -> GroupRequest:
        """Order that it was opened for."""
        return GroupRequest(
            task=self.tree.task,
            trajectories=self.asked,
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            round=self.round,
            round_size=self.round_size,
            tries=self.tries,
            retry_of=self.retry_of,
        )

    @property
    def waits_for(self) -> int:
        """Return the version from which on it runs and trains.

        Its newest token's, or the one it was opened at: weights that came after the checkpoint are
        gone, and until the trainer has come to their version again, nothing goes on from them.
        """
        return max([self.step, *(v for node in self.tree.nodes for v in node.versions)])

    def oldest(self, member: KeptMember) -> int | None:
        """Return the version of a member's oldest sampled token."""
        at = member.leaf.node if member.leaf else member.stand and member.stand.node
        if at is None:
            return None
        versions = [v for node in self.tree.path(at) for v in node.versions]
        return min(versions, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDeparture:
    """Point at which a branch leaves a trajectory."""

    parent: "TrajectoryRecord"
    node: int
    strategy: ForkStrategy
    why: Mapping[str, Any]
    """The decision, with its numbers."""


class TrajectoryRecord(Protocol):
    """The record of one trajectory. Errors raised here stop the run."""

    def reset(
        self, at: int | None, observation: Observation, *, env_seed: int, seconds: float
    ) -> None:
        """Record that its world was reset with `env_seed`; its prompt ends at node `at`."""
        ...

    def stepped(self, at: int | None, action: Action, answer: Step, *, seconds: float) -> None:
        """Record a complete turn, after which the trajectory stands at node `at`."""
        ...

    def last_step(self, action: Action, answer: Step, *, seconds: float) -> None:
        """Take the trajectory's last turn; it is recorded with its end."""
        ...

    def branches(self, node: int, *, strategy: ForkStrategy, why: Mapping[str, Any]) -> None:
        """Record that it begins at `node`, where another one has been."""
        ...

    def part(self, at: int) -> None:
        """Record the first part of a turn, which ends at node `at`."""
        ...

    async def settled(self) -> None:
        """Return when what was recorded may be acted on."""
        ...

    def begun_again(self, why: str, *, differs: bool, version: int) -> None:
        """Record that its world could not be brought back, and that it begins again at `version`.

        `differs` when the world answered otherwise than it had.
        """
        ...

    def finished(self, leaf: Leaf) -> None:
        """Record its end."""
        ...

    def given_up(self, why: str, *, failure: FailureKind | None = None) -> None:
        """Record that it does not count; `failure` is the kind of one that begins again for it."""
        ...


class RunRecorder(Protocol):
    """The record of a gate's groups, by their numbers. Errors raised here stop the run."""

    def opened(
        self,
        group: int,
        order: GroupRequest,
        *,
        size: int,
        after: int,
        version: int,
    ) -> None:
        """Record a group; `after` more are opened of the tasks that were taken with its task."""
        ...

    def enlarged(self, group: int, size: int) -> None:
        """Record that a group trains on `size` trajectories now."""
        ...

    def noted(
        self,
        group: int,
        note: Mapping[str, Any],
        *,
        sample: int | None = None,
        with_end: bool = False,
    ) -> None:
        """Record what it takes to go on with a group, in the words of who will read it.

        With `sample` it is noted with that trajectory's latest try; with `with_end` it counts only
        if the end of that one is what is recorded next of it.
        """
        ...

    def begun(
        self, attempt: RolloutKey, tree: Tree, *, seed: int, version: int, stand: ResumePoint | None
    ) -> TrajectoryRecord:
        """Record that a trajectory begins at `version`, or goes on where it stood."""
        ...

    def forked(
        self, attempt: RolloutKey, tree: Tree, *, seed: int, version: int, leaving: BranchDeparture
    ) -> TrajectoryRecord:
        """Record that a trajectory begins as a branch of another one, at that one's `version`."""
        ...

    def dropped(
        self, group: int, why: str, *, requeued: bool = False, counts: bool = False
    ) -> None:
        """Record that a group will not train.

        `requeued` when its task is tried again, `counts` when it was judged by all it has.
        """
        ...

    def completed(self, group: int) -> None:
        """Record that a group is handed to the trainer."""
        ...
