"""The shapes of groups a run has played: how long each piece of its trees is, and who shares it.

`python benchmarks/shapes.py RUN --output FILE` writes them; `training.py` measures with those in
`recorded/`, which came from the runs they name. A shape holds no token, only lengths.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agentrl.events.state import GroupState
from agentrl.store.reader import StoreReader

RECORDED = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens that come from one event."""

    parent: int | None
    """Index of the piece before it."""
    tokens: int
    trains: bool


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The tree of one task."""

    pieces: tuple[Piece, ...]
    """Parents first."""
    leaves: tuple[int, ...]
    """The last piece of each trajectory."""

    def path(self, leaf: int) -> tuple[int, ...]:
        """Return the pieces from the root to `leaf`."""
        found: list[int] = []
        at: int | None = leaf
        while at is not None:
            found.append(at)
            at = self.pieces[at].parent
        return tuple(reversed(found))


def shape_of(group: GroupState) -> GroupShape:
    """Return the shape of a group's tree; raises `ValueError` where a turn was withdrawn."""
    ids = sorted(group.told)
    if any(group.tree.node(id).withdraws for id in ids):
        raise ValueError("a turn was withdrawn, and what is left is no path; record another run")
    places = {id: place for place, id in enumerate(ids)}
    nodes = [group.tree.node(id) for id in ids]
    pieces = tuple(
        Piece(
            None if node.parent is None else places[node.parent],
            len(node.token_ids),
            node.source == "sampled",
        )
        for node in nodes
    )
    leaves = [one.leaf for one in group.rollouts.values() if one.leaf is not None]
    return GroupShape(pieces, tuple(places[leaf.node] for leaf in leaves if leaf.node is not None))


def recorded(name: str, folder: Path = RECORDED) -> tuple[GroupShape, ...]:
    """Return the groups of a file in `recorded/`."""
    groups = json.loads((folder / f"{name}.json").read_text())["groups"]
    return tuple(
        GroupShape(tuple(Piece(*piece) for piece in group["pieces"]), tuple(group["leaves"]))
        for group in groups
    )


def shapes_of(run: Path) -> Iterator[GroupShape]:
    """Yield the shapes of the groups a run has trained on, oldest first."""
    with StoreReader(run / "store") as store:
        for group in store.groups("trained"):
            yield shape_of(store.group(group))


def written(groups: Sequence[GroupShape], *, source: str) -> str:
    """Return a file of shapes, one group per line."""
    lines = (
        json.dumps({"pieces": [[*asdict(p).values()] for p in g.pieces], "leaves": g.leaves})
        for g in groups
    )
    return f'{{"source": {json.dumps(source)}, "groups": [\n' + ",\n".join(lines) + "\n]}\n"


def main() -> None:
    """Write the shapes of a run's groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--groups", type=int, default=8, help="so many, spread over the run")
    parser.add_argument("--source", required=True, help="the command that made the run")
    given = parser.parse_args()
    found = list(shapes_of(given.run))
    if not found:
        parser.error(f"{given.run} has no trained group in its store")
    chosen = found[:: max(1, len(found) // given.groups)][: given.groups]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(written(chosen, source=given.source))


if __name__ == "__main__":
    main()
