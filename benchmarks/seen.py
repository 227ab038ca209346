"""What the records of a run's store add up to: what was reset, given up, and trained."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.events.kinds import Event, GroupsTrained, RolloutAbandoned, RunResumed, TurnCompleted
from agentrl.store.lineage import ResumptionMark, line_to
from agentrl.store.reader import StoreReader


@dataclass
class Seen:
    """The records of a store, in order."""

    events: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])

    @classmethod
    def of(cls, folder: Path) -> "Seen":
        """Read the store in a run's folder."""
        with StoreReader(folder / "store") as reader:
            return cls(list(reader.events()))

    def turns(self) -> int:
        """Return how many complete turns were recorded."""
        return sum(
            isinstance(event, TurnCompleted) and event.exchange.action is not None
            for _, event in self.events
        )

    def resets(self) -> Counter[int]:
        """Return how often each trajectory was reset."""
        return Counter(
            event.trajectory
            for _, event in self.events
            if isinstance(event, TurnCompleted) and event.exchange.action is None
        )

    def reasons(self) -> Counter[str]:
        """Return why trajectories were given up."""
        return Counter(
            event.reason.partition(":")[0]
            for _, event in self.events
            if isinstance(event, RolloutAbandoned)
        )

    def lost_turns(self, *reasons: str) -> int:
        """Return how many complete turns were given up for these reasons."""
        return sum(
            event.turns
            for _, event in self.events
            if isinstance(event, RolloutAbandoned) and event.reason.partition(":")[0] in reasons
        )

    def trained_until(self, position: int) -> Counter[int]:
        """Return how often each group is marked as trained on the line of a checkpoint."""
        resumed = [
            ResumptionMark(n, e.position) for n, e in self.events if isinstance(e, RunResumed)
        ]
        line = line_to(position, resumed)
        return Counter(
            group
            for n, event in self.events
            if isinstance(event, GroupsTrained) and any(n in stretch for stretch in line)
            for group in event.groups
        )


def position_of(folder: Path) -> tuple[int, int]:
    """Return step and store position of a run's newest checkpoint."""
    newest = max((folder / "checkpoints").glob("step-*"))
    state = json.loads((newest / "state.json").read_text())
    return state["step"], state["samplers"]["store"]["position"]
