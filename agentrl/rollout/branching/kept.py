"""A group's tree in a record: what is noted of it as it grows, and the tree again from the notes.

    note     of what                                           counts
    -------  ------------------------------------------------  -----------------------------------
    Grows    the group, before its first slot plays            always
    Start    a slot, before it plays                           its latest; a branch's own record
                                                               says the same at once
    Alone    a slot beyond the budget                          always
    Copied   a copy of a world, made or not                    always
    events   everything that the topology hears, before it     always; an end only if the record of
             has any effect                                    the trajectory's end comes next

So whatever was written last, the events lead to a state that the trajectories agree with: at most
one has a start that no slot plays yet, or a slot that has yet to say that it begins again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from agentrl.events.state import GroupState, ResumePoint
from agentrl.rollout.branching.aepo import ObservedSignals
from agentrl.rollout.branching.decision import BranchPoint, BranchPointReached, Path, PlannedRollout
from agentrl.rollout.branching.forks import ForkAttempt
from agentrl.rollout.branching.topology import Event
from agentrl.rollout.branching.tree_state import PathEnded, PathReopened


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOpenedNote:
    """A group's tree begins."""

    leaves: int
    prior: ObservedSignals | None
    """Observations of the groups before it; None for a topology that does not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraRolloutNote:
    """A slot plays beyond the budget, because the group was made larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRolloutNote:
    """A slot plays a trajectory of the tree."""

    start: PlannedRollout


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFailedNote:
    """A start has no world."""

    start: PlannedRollout


Note = (
    TreeOpenedNote
    | ExtraRolloutNote
    | TreeRolloutNote
    | ForkFailedNote
    | BranchPointReached
    | PathEnded
    | PathReopened
    | ForkAttempt
)
_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Note)}


def as_note(said: Note) -> dict[str, Any]:
    """Return a note as plain values for a record; `from_note` reads them."""
    name = type(said).__name__
    return {name: _KINDS[name].dump_python(said, mode="json")}


def from_note(said: Mapping[str, Any]) -> Note:
    """Return the note of `as_note`'s values. Raises `ValueError` for anything else."""
    ((name, value),) = said.items()
    if name not in _KINDS:
        raise ValueError(
            f"a note has kind {name!r}, but the notes of a tree have the kinds {sorted(_KINDS)}"
        )
    try:
        return _KINDS[name].validate_python(value)
    except ValidationError as error:
        raise ValueError(f"a note of a {name} cannot be read: {error}") from error


def event_note(event: Event) -> dict[str, Any]:
    return as_note(ForkFailedNote(start=event) if isinstance(event, PlannedRollout) else event)


@dataclass(slots=True, kw_only=True)
class RestoredTree:
    """Tree of one group, from its notes."""

    grows: TreeOpenedNote
    group: GroupState
    events: list[Event] = field(default_factory=list[Event])
    starts: dict[int, PlannedRollout] = field(default_factory=dict[int, PlannedRollout])
    """By try: what it plays, where that is noted with it."""
    alone: set[int] = field(default_factory=set[int])
    copies: list[ForkAttempt] = field(default_factory=list[ForkAttempt])

    @classmethod
    def from_group(cls, group: GroupState) -> "RestoredTree":
        """Return the tree of a group with notes. Raises `ValueError` for notes of another kind."""
        first, *rest = (from_note(note.note) for note in group.notes)
        if not isinstance(first, TreeOpenedNote):
            raise ValueError(f"group {group.id} has notes but does not state its topology")
        tree = cls(grows=first, group=group)
        forks = {id: rollout.fork for id, rollout in group.rollouts.items()}
        tree.starts = {
            id: _read_branch_start(fork.why) for id, fork in forks.items() if fork and fork.why
        }
        for note, content in zip(group.notes[1:], rest, strict=True):
            match content:
                case TreeRolloutNote() if note.trajectory is not None:
                    tree.starts[note.trajectory] = content.start
                case ExtraRolloutNote() if note.trajectory is not None:
                    tree.alone.add(group.rollouts[note.trajectory].sample)
                case ForkAttempt():
                    tree.copies.append(content)
                case ForkFailedNote():
                    tree.events.append(content.start)
                case BranchPointReached() | PathEnded() | PathReopened():
                    tree.events.append(content)
                case _:
                    raise ValueError(f"group {group.id} has a note out of order: {content}")
        return tree

    def latest(self, sample: int) -> tuple[PlannedRollout | None, bool]:
        """Return the start of a sample, and whether its latest try plays it and goes on."""
        tries = [one for one in self.group.rollouts.values() if one.sample == sample]
        starts = [start for one in tries if (start := self.starts.get(one.id)) is not None]
        goes_on = bool(tries) and tries[-1].status == "open" and tries[-1].id in self.starts
        return (starts[-1] if starts else None), goes_on

    def has_ended(self, path: Path) -> bool:
        """Return whether a trajectory was reported as ended."""
        return any(isinstance(event, PathEnded) and event.path == path for event in self.events)

    def stand(self, origin: BranchPoint) -> ResumePoint | None:
        """Return the state of the latest trajectory on this path as the turn began."""
        for one in reversed(self.group.rollouts.values()):
            start = self.starts.get(one.id)
            if start is None or start.path != origin.path:
                continue
            if (before := one.truncate_to(origin.turn)) is not None:
                return self.group.resume_point(before)
        return None

    def is_decided(self, start: PlannedRollout, turn: int) -> bool:
        """Return whether the topology was asked about a live trajectory's turn."""
        decided = start.origin.turn == turn > 0
        for event in self.events:
            if isinstance(event, PathEnded) and event.path == start.path:
                decided = False
            elif (
                isinstance(event, BranchPointReached)
                and event.path == start.path
                and event.turn == turn
            ):
                decided = True
        return decided

    def context_tokens(self, origin: BranchPoint) -> int | None:
        """Return the length of what a trajectory from there has begun with."""
        for event in reversed(self.events):
            if isinstance(event, BranchPointReached) and (event.path, event.turn) == (
                origin.path,
                origin.turn,
            ):
                return event.context_tokens
        return None


def _read_branch_start(why: Mapping[str, Any]) -> PlannedRollout:
    note = from_note(why.get("plays") or {})
    if not isinstance(note, TreeRolloutNote):
        raise ValueError(f"a branch does not state its rollout: {why}")
    return note.start
