"""State the writer keeps of an incomplete group: names of nodes, positions of trajectories."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.env import ForkStrategy
from agentrl.events.kinds import EnvExchange, ForkPoint
from agentrl.store.errors import StoreError
from agentrl.store.restored import RestoredGroup, TrajectoryState
from agentrl.trajectory import Node, Tree


@dataclass(frozen=True, slots=True)
class UnrecordedNodes:
    """Nodes of a tree that no record has said yet, under their recorded names."""

    nodes: tuple[Node, ...]
    at: int | None
    names: dict[int, int]
    """By id in the tree: to be remembered once the record is written."""


@dataclass(slots=True)
class RecordedPath:
    """One trajectory: where it stood after each exchange, those it inherited first."""

    group: int
    stops: list[int | None] = field(default_factory=list[int | None])
    turns: int = 0
    """Complete ones of its own."""
    state: TrajectoryState = "open"

    def stop(self, at: int | None, exchange: EnvExchange | None) -> None:
        """Remember where an exchange left it."""
        if exchange is not None:
            self.stops.append(at)
            self.turns += exchange.action is not None


@dataclass(slots=True)
class GroupRecorder:
    """One group."""

    names: dict[int, int] = field(default_factory=dict[int, int])
    """Recorded names of the tree's nodes; they count from 0 in the order they were recorded."""
    lines: dict[int, RecordedPath] = field(default_factory=dict[int, RecordedPath])

    @property
    def open(self) -> list[int]:
        """Return the trajectories that have not ended."""
        return [id for id, line in self.lines.items() if line.state == "open"]

    def growth(self, tree: Tree, node: int | None) -> UnrecordedNodes:
        """Return the nodes to record for `node` to be known: its ancestors too."""
        if node is None:
            return UnrecordedNodes((), None, {})
        fresh: list[Node] = []
        names: dict[int, int] = {}
        for id, part in self._unknown(tree, node):
            parent = part.parent
            if parent is not None:
                parent = names[parent] if parent in names else self.names[parent]
            names[id] = len(self.names) + len(names)
            fresh.append(part if parent == part.parent else replace(part, parent=parent))
        return UnrecordedNodes(
            tuple(fresh), names[node] if node in names else self.names[node], names
        )

    def _unknown(self, tree: Tree, node: int) -> list[tuple[int, Node]]:
        """Return the nodes on the way to `node` that are not recorded, parents first."""
        nodes: list[tuple[int, Node]] = []
        at: int | None = node
        # What is above a recorded node is recorded: no walk to the root for every turn.
        while at is not None and at not in self.names:
            part = tree.node(at)
            nodes.append((at, part))
            at = part.parent
        return nodes[::-1]

    def leaving(
        self,
        parent: int,
        tree: Tree,
        node: int,
        *,
        strategy: ForkStrategy,
        why: Mapping[str, Any],
    ) -> tuple[ForkPoint, UnrecordedNodes]:
        """Return the fork and nodes to record of a trajectory that leaves `parent` at `node`."""
        growth = self.growth(tree, node)
        fork = ForkPoint(
            parent=parent,
            node=growth.names.get(node, self.names.get(node, -1)),
            shared=self.shared(parent, tree, node),
            strategy=strategy,
            why=dict(why),
        )
        return fork, growth

    def passed(self, tree: Tree, node: int) -> int:
        """Return the last trajectory that stood at `node` after an exchange, given up or not."""
        name = self.names.get(node)
        for id, line in reversed(self.lines.items()):
            if name is not None and name in line.stops:
                return id
        raise StoreError(
            f"no trajectory of task {tree.task.id} has completed a turn at node {node}, so none "
            "can branch there; record the turn first"
        )

    def shared(self, parent: int, tree: Tree, node: int) -> int:
        """Return the number of exchanges of `parent` on the way to `node`."""
        way = {self.names.get(id) for id in tree.path_ids(node)}
        stops = self.lines[parent].stops
        count = next((i for i, at in enumerate(stops) if at not in way), len(stops))
        if count == 0:
            raise StoreError(
                f"node {node} is not below the prompt of trajectory {parent}, or is not recorded; "
                "fork a trajectory at a recorded node"
            )
        return count

    @classmethod
    def of(cls, group: RestoredGroup) -> "GroupRecorder":
        """Return the book of a group read back, whose tree has the recorded names."""
        book = cls({id: id for id in range(len(group.tree.nodes))})
        for trajectory in group.trajectories:
            line = RecordedPath(
                group.id, list(trajectory.stops), trajectory.own_turns, trajectory.state
            )
            book.lines[trajectory.id] = line
        return book
