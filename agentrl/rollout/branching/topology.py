"""Interface of topologies, and the restoration of a topology's state from a log.

A topology is pure: it takes a frozen state and what happened, and returns the next state and what
to do. The runner owns the state, begins what it is told to begin, and reports what came of it:

    start ──► PlannedRollout, ...                  begin these trajectories
    reach_boundary(BranchPointReached) ──► BranchDecision   begin its children, keep it, or go on
    fork_failed(PlannedRollout) ──► PlannedRollout, ...  a start that failed costs only itself
    finish_path(PathEnded) ──► PlannedRollout, ...    without live trajectory and start it is done
    reopen_path(PathReopened) ──► PlannedRollout      an ended one is too old and begins again

The same events in the same order give the same states, under any clock; `restore` folds a log.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from agentrl.rollout.branching.decision import (
    BranchDecision,
    BranchPoint,
    BranchPointReached,
    Path,
    PlannedRollout,
)
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.tree_state import PathEnded, PathReopened, TreeState

S = TypeVar("S")
Event = BranchPointReached | PlannedRollout | PathEnded | PathReopened
"""Events a runner reports: a boundary, a start that could not be begun, the end of a trajectory,
and that it was not the end."""


class TreePlanner(Protocol[S]):
    """The shape of a task's tree, as decisions. Immutable, shared between tasks."""

    @property
    def signal(self) -> EntropySignal | None:
        """Signal by which turns are probed; None for a topology that uses no entropy."""
        ...

    def start(self, task_id: str, *, seed: int) -> tuple[S, tuple[PlannedRollout, ...]]:
        """Begin a task."""
        ...

    def growth(self, state: S) -> TreeState:
        """Return the part of a state that every topology has."""
        ...

    def probe_tokens(self, state: S, path: Path, turn: int) -> int:
        """Return the number of turn tokens to sample before its boundary is reported; 0 for none.

        They stay the turn's first tokens whatever is decided.
        """
        ...

    def reach_boundary(self, state: S, boundary: BranchPointReached) -> tuple[S, BranchDecision]:
        """Decide whether trajectories branch where a turn begins."""
        ...

    def fork_failed(self, state: S, start: PlannedRollout) -> tuple[S, tuple[PlannedRollout, ...]]:
        """Take back a start whose world could not be made; its budget is free again."""
        ...

    def finish_path(self, state: S, ended: PathEnded) -> tuple[S, tuple[PlannedRollout, ...]]:
        """Take note of the end of a trajectory and say what begins now."""
        ...

    def reopen_path(self, state: S, again: PathReopened) -> tuple[S, tuple[PlannedRollout, ...]]:
        """Begin an ended trajectory again, one way or another: one start."""
        ...

    def find_origins(self, state: S) -> frozenset[BranchPoint]:
        """Return the places that trajectories may yet begin from, of those decided to be kept."""
        ...


def restore(
    topology: TreePlanner[S], task_id: str, *, seed: int, events: Sequence[Event]
) -> tuple[S, tuple[BranchDecision, ...]]:
    """Return the state after `events`, and the decisions they led to."""
    state, _ = topology.start(task_id, seed=seed)
    decisions: list[BranchDecision] = []
    for event in events:
        match event:
            case BranchPointReached():
                state, decision = topology.reach_boundary(state, event)
                decisions.append(decision)
            case PlannedRollout():
                state, _ = topology.fork_failed(state, event)
            case PathEnded():
                state, _ = topology.finish_path(state, event)
            case PathReopened():
                state, _ = topology.reopen_path(state, event)
    return state, tuple(decisions)


AnyTopology = TreePlanner[Any]
