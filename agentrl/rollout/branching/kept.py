"""A group's tree in a record: what is noted of it as it grows, and the tree again from the notes.

    note     of what                                           counts
    -------  ------------------------------------------------  -----------------------------------
    Grows    the group, before its first seat plays            always
    Start    a seat, before it plays                           its latest; a branch's own record
                                                               says the same at once
    Alone    a seat beyond the budget                          always
    Copied   a copy of a world, made or not                    always
    events   everything that the topology hears, before it     always; an end only if the record of
             has any effect                                    the trajectory's end comes next

So whatever was written last, the events lead to a state that the trajectories agree with: at most
one has a start that no seat plays yet, or a seat that has yet to say that it begins again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentrl.rollout.branching.aepo import Observed
from agentrl.rollout.branching.decision import Boundary, Origin, Path, Start
from agentrl.rollout.branching.growing import Copied
from agentrl.rollout.branching.growth import Ended, Reopened
from agentrl.rollout.branching.topology import Event
from agentrl.rollout.recorder import KeptGroup, KeptTry, Stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Grows:
    """A group's tree begins."""

    leaves: int
    """Leaves of its budget."""
    prior: Observed | None
    """Observations of the groups before it; None for a topology that does not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A seat plays beyond the budget, because the group was made larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plays:
    """A seat plays a trajectory of the tree."""

    start: Start


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFork:
    """A start has no world."""

    start: Start


Note = Grows | Alone | Plays | NoFork | Boundary | Ended | Reopened | Copied
_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (Grows, Alone, Plays, NoFork, Boundary, Ended, Reopened, Copied)
}


def as_note(said: Note) -> dict[str, Any]:
    """Return a note as plain values for a record; `from_note` reads them."""
    name = type(said).__name__
    return {name: _KINDS[name].dump_python(said, mode="json")}


def from_note(said: Mapping[str, Any]) -> Note:
    """Return the note of `as_note`'s values. Raises `ValueError` for anything else."""
    ((name, value),) = said.items()
    if name not in _KINDS:
        raise ValueError(f"a note says {name!r}, and the notes of a tree say {sorted(_KINDS)}")
    try:
        return _KINDS[name].validate_python(value)
    except ValidationError as error:
        raise ValueError(f"a note of a {name} cannot be read: {error}") from error


def event_note(event: Event) -> dict[str, Any]:
    """Return the note of an event."""
    return as_note(NoFork(start=event) if isinstance(event, Start) else event)


@dataclass(slots=True, kw_only=True)
class KeptTree:
    """Tree of one group, from its notes."""

    grows: Grows
    events: list[Event] = field(default_factory=list[Event])
    starts: dict[int, Start] = field(default_factory=dict[int, Start])
    """By try: what it plays, where that is noted with it."""
    alone: set[int] = field(default_factory=set[int])
    """Samples."""
    copies: list[Copied] = field(default_factory=list[Copied])
    tries: Sequence[KeptTry] = ()

    @classmethod
    def of(cls, group: KeptGroup) -> "KeptTree":
        """Return the tree of a group with notes. Raises `ValueError` for notes of another kind."""
        first, *rest = (from_note(note.said) for note in group.notes)
        if not isinstance(first, Grows):
            raise ValueError(f"group {group.number} has notes and does not say what it grows by")
        tree = cls(grows=first, tries=group.paths)
        samples = {one.id: one.sample for one in group.paths}
        tree.starts = {one.id: _branch(one.why) for one in group.paths if one.why}
        for note, said in zip(group.notes[1:], rest, strict=True):
            match said:
                case Plays() if note.by is not None:
                    tree.starts[note.by] = said.start
                case Alone() if note.by is not None:
                    tree.alone.add(samples[note.by])
                case Copied():
                    tree.copies.append(said)
                case NoFork():
                    tree.events.append(said.start)
                case Boundary():
                    tree.events.append(tree._told(said))
                case Ended() | Reopened():
                    tree.events.append(said)
                case _:
                    raise ValueError(f"group {group.number} has a note out of place: {said}")
        return tree

    def latest(self, sample: int) -> tuple[Start | None, bool]:
        """Return the start of a sample, and whether its latest try plays it and goes on."""
        tries = [one for one in self.tries if one.sample == sample]
        starts = [start for one in tries if (start := self.starts.get(one.id)) is not None]
        own = bool(tries) and tries[-1].is_open and tries[-1].id in self.starts
        return (starts[-1] if starts else None), own

    def has_ended(self, path: Path) -> bool:
        """Return whether a trajectory was reported as ended."""
        return any(isinstance(event, Ended) and event.path == path for event in self.events)

    def stand(self, origin: Origin) -> Stand | None:
        """Return the state of the latest trajectory on this path as the turn began."""
        for one in reversed(self.tries):
            start = self.starts.get(one.id)
            if start is not None and start.path == origin.path and len(one.stands) > origin.turn:
                return one.stands[origin.turn]
        return None

    def is_decided(self, start: Start, turn: int) -> bool:
        """Return whether the topology was asked about a live trajectory's turn."""
        decided = start.origin.turn == turn > 0
        for event in self.events:
            if isinstance(event, Ended) and event.path == start.path:
                decided = False
            elif isinstance(event, Boundary) and event.path == start.path and event.turn == turn:
                decided = True
        return decided

    def context_tokens(self, origin: Origin) -> int | None:
        """Return the length of what a trajectory from there has begun with."""
        for event in reversed(self.events):
            if isinstance(event, Boundary) and (event.path, event.turn) == (
                origin.path,
                origin.turn,
            ):
                return event.context_tokens
        return None

    def _told(self, boundary: Boundary) -> Boundary:
        """Return a boundary at the node that it has in the kept tree."""
        stand = self.stand(Origin(path=boundary.path, turn=boundary.turn))
        return replace(boundary, node=None if stand is None else stand.node)


def _branch(why: Mapping[str, Any]) -> Start:
    """Return the start that a branch's own record says it plays."""
    said = from_note(why.get("plays") or {})
    if not isinstance(said, Plays):
        raise ValueError(f"a branch does not say what it plays: {why}")
    return said.start
