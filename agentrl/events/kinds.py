"""Events of groups and trajectories, in the order they happen.

Groups and trajectories are counted over a run. A node has the id that it has in its group's tree;
an event names the nodes that no event of the group has named yet, parents first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

from agentrl.env import Action, ForkStrategy, Observation, Step
from agentrl.errors import FailureKind
from agentrl.events.history import fingerprint, step_fingerprint
from agentrl.task import Task
from agentrl.trajectory import Leaf, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvExchange:
    """One thing the agent did, and what the world answered. A reset is the one without an action.

    The exchanges of a trajectory, in order, are what a verified replay plays again. Made by
    `resetting` and `stepping`.
    """

    action: Action | None
    observation: Observation
    fingerprint: str
    """Fingerprint of the answer, as a replay compares it."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    tool_calls: int = 0
    seconds: float = 0.0
    """Since the trajectory began, waiting while parked left out: what its budgets have used."""
    env_seed: int | None = None
    """Seed a reset gave the environment, where it is not the trajectory's."""

    @classmethod
    def resetting(
        cls, observation: Observation, *, env_seed: int | None = None, seconds: float = 0.0
    ) -> Self:
        """Return the exchange of an environment's reset."""
        return cls(
            action=None,
            observation=observation,
            fingerprint=fingerprint(observation),
            seconds=seconds,
            env_seed=env_seed,
        )

    @classmethod
    def stepping(cls, action: Action, answer: Step, *, seconds: float = 0.0) -> Self:
        """Return the exchange of an environment's step."""
        observation, reward, terminated, truncated, info = answer
        return cls(
            action=action,
            observation=observation,
            fingerprint=step_fingerprint(answer),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            components=dict(info.get("reward_components", {})),
            tool_calls=len(info.get("tool_results", ())),
            seconds=seconds,
        )

    def without_observation(self) -> "EnvExchange":
        """Return it without what the observation shows; its request stays."""
        # Field by field: `dataclasses.replace` takes twice as long, for every turn.
        return EnvExchange(
            action=self.action,
            observation=Observation((), request=self.observation.request),
            fingerprint=self.fingerprint,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            components=self.components,
            tool_calls=self.tool_calls,
            seconds=self.seconds,
            env_seed=self.env_seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Fork of a trajectory from another."""

    parent: int
    node: int
    shared: int
    """Number of exchanges shared with the parent; its environment is as after the last."""
    strategy: ForkStrategy
    why: Mapping[str, Any]
    """The decision that led to it, with its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A group to open: its task, and where it differs from the run's own numbers."""

    task: Task
    trajectories: int | None = None
    """Number of trajectories it trains on; None is the run's number."""
    max_turns: int | None = None
    """Most policy messages of each; None is the run's number."""
    max_turn_tokens: int | None = None
    """Most tokens of one of those; None is the run's number."""
    round: int = 0
    """Request for tasks within its step that brought it, from 1; 0 where rounds are not counted."""
    round_size: int = 0
    """Number of tasks that its round was asked for."""
    tries: int = 0
    """Times its task was tried before, as groups with too few trajectories that did not fail."""
    retry_of: int | None = None
    """Number of the group that it takes the place of; None for a first try."""

    @classmethod
    def from_task(cls, found: "Task | GroupRequest") -> "GroupRequest":
        """Return a plain task as a request with the run's own numbers."""
        return found if isinstance(found, GroupRequest) else cls(task=found)

    def build_retry(self, group: int) -> "GroupRequest":
        """Return the request for another try at the task of `group`, which this one opened."""
        return replace(self, tries=self.tries + 1, retry_of=group, round=0, round_size=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOpened:
    """A task was taken from the sampler, to be played `size` times."""

    group: int
    request: GroupRequest
    order: int
    """Number of tasks the stream had handed out before this one; -1 for one that is not of it."""
    seed: int
    size: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStarted:
    """A trajectory exists."""

    trajectory: int
    group: int
    sample: int
    seed: int
    version: int
    """Newest version that all engines had; a branch has its parent's."""
    attempt: int
    """Tries before this one, those that were begun again for any reason among them."""
    fork: ForkPoint | None = None
    nodes: tuple[Node, ...] = ()
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCompleted:
    """A trajectory has its prompt, or a turn more."""

    trajectory: int
    group: int
    at: int | None
    exchange: EnvExchange
    nodes: tuple[Node, ...] = ()
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnExtended:
    """A trajectory has the first part of a turn, which goes on from its last token."""

    trajectory: int
    group: int
    at: int
    nodes: tuple[Node, ...] = ()
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished:
    """A trajectory has its outcome."""

    trajectory: int
    group: int
    leaf: Leaf
    exchange: EnvExchange | None = None
    """The last one, where no event has told of it yet."""
    nodes: tuple[Node, ...] = ()
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAbandoned:
    """A trajectory was given up, and another takes its place or none: it never counts."""

    trajectory: int
    group: int
    reason: str
    turns: int
    """Completed turns that are played again, or lost with it."""
    failure: FailureKind | None = None
    """Kind of failure of one that failed and begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompleted:
    """A group has all its trajectories and may train."""

    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """A group will not train. A resume from a checkpoint that was written before it opens the group
    again if it `counts`: what it taught is learnt again, since the checkpoint does not hold it."""

    group: int
    reason: str
    requeued: bool = False
    """Its task is tried again, as a new group."""
    counts: bool = False
    """It has all of its trajectories, and was judged by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsTrained:
    """Groups were trained: from here on they are part of the weights."""

    groups: tuple[int, ...]
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStarted:
    """A checkpoint with everything up to this record is about to be written."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """The run goes on from a checkpoint, see `lineage`."""

    position: int
    step: int
    torn_bytes: int
    """Bytes of an unfinished record that a killed writer left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResized:
    """A group trains on more trajectories than it was opened for."""

    group: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchesPlanned:
    """A trajectory that has begun leaves others where they came past, before its first turn."""

    trajectory: int
    group: int
    fork: ForkPoint
    nodes: tuple[Node, ...] = ()
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentNoted:
    """Note of another component, in its own format, that a resumed group needs."""

    group: int
    trajectory: int | None
    note: Mapping[str, Any]
    with_end: bool = False
    """It counts only if the next record of the trajectory is its end."""


Event = (
    GroupOpened
    | GroupResized
    | RolloutStarted
    | BranchesPlanned
    | TurnCompleted
    | TurnExtended
    | RolloutFinished
    | RolloutAbandoned
    | ComponentNoted
    | GroupCompleted
    | GroupDropped
    | GroupsTrained
    | CheckpointStarted
    | RunResumed
)

KINDS: tuple[type[Event], ...] = get_args(Event)
"""A record's kind is the index here: append, and never change the order."""

GrowthEvent = RolloutStarted | BranchesPlanned | TurnCompleted | TurnExtended | RolloutFinished
"""Events that name nodes."""

RERUN = "rerun"
"""Reason to abandon a trajectory whose environment could not be rebuilt: it broke each time."""
MISMATCH = "replay_mismatch"
"""Reason to abandon a trajectory whose environment answered otherwise than it had."""
TOO_OLD = "too old"
"""Reason to abandon a trajectory that its age bound has stopped, ended or not."""
PLAYED_AGAIN = "played again"
"""Reason to abandon a failed trajectory that begins anew, with all its retries."""
