"""What a gate and its episodes tell whoever keeps a durable record of them, and get back from it.

`agentrl.store` implements it. A run without a record has none of these objects and pays nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.env import Action, ForkStrategy, Observation, Step
from agentrl.rollout.replay import History
from agentrl.scheduler import Attempt
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a trajectory that a record kept goes on."""

    node: int | None
    turn: int
    """The one it is about to take, or stands in the middle of."""
    begun: tuple[int, ...]
    """Tokens of that turn which are sampled already; they end the context."""
    turn_rewards: tuple[float, ...]
    components: Mapping[str, float]
    tool_calls: int
    seconds: float
    """Of its time budget that are used."""
    history: History
    """What brings back its world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMember:
    """One trajectory of a kept group."""

    sample: int
    seed: int
    attempt: int
    """Tries before this one."""
    failures: int
    """Of those, the ones that failed."""
    leaf: Leaf | None = None
    """Its end; None for one that goes on, or begins."""
    stand: Stand | None = None
    """None for one that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTry:
    """One try at a trajectory of a kept group: it goes on, has ended, or was given up."""

    id: int
    """As the record counts them, in the order they began."""
    sample: int
    is_open: bool
    why: Mapping[str, Any] | None
    """Of the branch that it began as, see `Leaving`."""
    stands: tuple[Stand, ...]
    """Where the reset left it, and every complete turn, those of its parent among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNote:
    """What was noted of a group."""

    said: Mapping[str, Any]
    by: int | None
    """The try it was noted with, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """A group that a record kept, for a gate to go on with."""

    number: int
    """As it was counted by the gate that opened it."""
    size: int
    """How many trajectories it trains on."""
    asked: int
    """How many it was opened for, before it was enlarged."""
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
    tries: tuple[KeptTry, ...] = ()
    """Every one, in the order they began; only of a group that something was noted of."""
    notes: tuple[KeptNote, ...] = ()
    """In order."""
    branched: bool = False
    """Whether a trajectory left another one."""

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
class Leaving:
    """Where a branch leaves a trajectory."""

    parent: "TrajectoryRecord"
    node: int
    strategy: ForkStrategy
    why: Mapping[str, Any]
    """The decision, with its numbers."""


class TrajectoryRecord(Protocol):
    """The record of one trajectory. Errors raised here stop the run."""

    def reset(self, at: int | None, observation: Observation, *, seconds: float) -> None:
        """Record that its world was reset; its prompt ends at node `at`."""
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

    def begun_again(self, why: str) -> None:
        """Record that its world could not be brought back, and that it begins again."""
        ...

    def finished(self, leaf: Leaf) -> None:
        """Record its end."""
        ...

    def given_up(self, why: str) -> None:
        """Record that it does not count."""
        ...


class Recorder(Protocol):
    """The record of a gate's groups, by their numbers. Errors raised here stop the run."""

    def opened(
        self,
        group: int,
        task: Task,
        *,
        size: int,
        after: int,
        version: int,
        max_turns: int | None = None,
        max_turn_tokens: int | None = None,
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
        self, attempt: Attempt, tree: Tree, *, seed: int, stand: Stand | None
    ) -> TrajectoryRecord:
        """Record that a trajectory begins, or goes on where it stood."""
        ...

    def forked(
        self, attempt: Attempt, tree: Tree, *, seed: int, leaving: Leaving
    ) -> TrajectoryRecord:
        """Record that a trajectory begins as a branch of another one."""
        ...

    def dropped(self, group: int, why: str) -> None:
        """Record that a group will never train."""
        ...

    def completed(self, group: int) -> None:
        """Record that a group is handed to the trainer."""
        ...
