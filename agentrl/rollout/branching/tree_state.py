"""One task's tree as far as it has grown: who lives, who came from whom. Frozen; pure steps."""

from dataclasses import dataclass, replace

from agentrl.rollout.branching.budget import BranchBudget, BudgetLedger
from agentrl.rollout.branching.decision import BranchPoint, BranchPointReached, Path, PlannedRollout
from agentrl.runtime.seeds import derive


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEnded:
    """A trajectory has ended."""

    path: Path
    tokens: int
    """Added by this trajectory itself, shared ones not among them."""
    failed: bool = False
    """Something broke: it has no reward and may be begun again."""
    again: bool | None = None
    """True to begin again at once, where a scheduler decides that; None leaves it to the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReopened:
    """A trajectory that had ended begins again: its tokens have become too old."""

    start: PlannedRollout


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePath:
    """A live trajectory."""

    start: PlannedRollout
    streak: int = 0
    """Boundaries in a row, up to the last one, that branched on this path."""
    branches: int = 0
    turn: int = 0
    first: float | None = None
    last: float | None = None
    tool_sum: float = 0.0
    tools: int = 0
    """Signals after tool results that are its own, and their sum."""
    tokens: int = 0
    """Number of its own tokens, as last reported."""

    @property
    def is_root(self) -> bool:
        """True when it began at the prompt."""
        return self.start.origin.turn == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeState:
    """State of one task's tree that all topologies share."""

    task_id: str
    seed: int
    """Seed of the run or step; with task and path it gives every draw and trajectory's noise."""
    ledger: BudgetLedger
    lines: tuple[LivePath, ...] = ()
    roots: int = 0
    """Begun so far, those begun again not counted twice."""
    issued: tuple[Path, ...] = ()
    """Every path ever given out: a failure begun again must not name its branches twice."""

    @classmethod
    def from_budget(cls, task_id: str, *, seed: int, budget: BranchBudget) -> "TreeState":
        """Return a tree of which nothing has grown."""
        return cls(task_id=task_id, seed=seed, ledger=BudgetLedger.from_budget(budget))

    def line(self, path: Path) -> LivePath:
        """Return a live trajectory."""
        for line in self.lines:
            if line.start.path == path:
                return line
        raise ValueError(f"no trajectory {path} is live in the tree of task {self.task_id}")

    def replace_line(self, line: LivePath) -> "TreeState":
        """Return the tree with one line in place of the one of its path."""
        same = line.start.path
        return replace(
            self, lines=tuple(line if old.start.path == same else old for old in self.lines)
        )

    def add_tokens(self, path: Path, tokens: int) -> "TreeState":
        """Return the tree after a trajectory said how many tokens it has added."""
        line = self.line(path)
        grown = self.replace_line(replace(line, tokens=tokens))
        return replace(grown, ledger=self.ledger.add_tokens(tokens - line.tokens))

    def start_roots(self, count: int) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        """Begin so many trajectories at the prompt, or as many as the budget has left."""
        return self._begin_many(count, None)

    def branch(
        self, origin: BranchPoint, count: int, *, inherit: LivePath | None = None
    ) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        """Begin so many trajectories at `origin`, or as many as the budget has left.

        They take over the streak, the branches and the first signal of `inherit`.
        """
        return self._begin_many(count, origin, inherit)

    def free_path(self, origin: BranchPoint) -> Path:
        """Return the path of the next branch at `origin`."""
        ordinal = 0
        while (path := (*origin.path, origin.turn, ordinal)) in self.issued:
            ordinal += 1
        return path

    def add_lines(self, *lines: LivePath) -> "TreeState":
        """Return the tree with further live trajectories."""
        paths = tuple(line.start.path for line in lines if line.start.path not in self.issued)
        return replace(self, lines=(*self.lines, *lines), issued=(*self.issued, *paths))

    def drop(self, path: Path) -> "TreeState":
        """Return the tree without a trajectory that never began; its place is free again."""
        line = self.line(path)
        return replace(self.remove_line(path), ledger=self.ledger.give_back(line.start.sample))

    def end(
        self, ended: PathEnded, *, elsewhere: BranchPoint | None = None
    ) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        """Return the tree without a trajectory that has ended.

        A failed root is begun again as it was, a failed branch leaves its place to whoever comes:
        the world it began in is gone. Both only as often as the budget allows. Where a scheduler
        decides, a branch begins again `elsewhere`, by default at the prompt.
        """
        grown = self.add_tokens(ended.path, ended.tokens)
        line = grown.line(ended.path)
        sample, again = line.start.sample, ended.again
        if again is None:
            again = ended.failed and grown.ledger.may_retry(sample)
        if not again:
            return replace(grown.remove_line(ended.path), ledger=grown.ledger.end(sample)), ()
        grown = replace(grown, ledger=grown.ledger.count_retry(sample))
        if line.is_root:
            return grown.replace_line(LivePath(start=line.start)), (line.start,)
        grown = grown.remove_line(ended.path)
        if ended.again is None:
            return replace(grown, ledger=grown.ledger.give_back(sample)), ()
        grown, start = grown._begin(sample, elsewhere)
        return grown, (start,)

    def reopen(
        self, start: PlannedRollout, *, elsewhere: BranchPoint | None = None
    ) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        """Return the tree with a trajectory begun again that had ended.

        A root is the same again, a branch begins `elsewhere`, by default at the prompt.
        """
        grown = replace(self, ledger=self.ledger.reopen(start.sample))
        if start.origin.turn == 0:
            return grown.add_lines(LivePath(start=start)), (start,)
        grown, again = grown._begin(start.sample, elsewhere)
        return grown, (again,)

    def remove_line(self, path: Path) -> "TreeState":
        """Return the tree without one live trajectory."""
        return replace(self, lines=tuple(line for line in self.lines if line.start.path != path))

    def fill(self, *, whole: bool) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        """Begin at the prompt when nothing lives and leaves are left: one, or all of them."""
        if self.lines:
            return self, ()
        return self.start_roots(self.ledger.open if whole else 1)

    def _begin_many(
        self, count: int, origin: BranchPoint | None, inherit: LivePath | None = None
    ) -> tuple["TreeState", tuple[PlannedRollout, ...]]:
        ledger, samples = self.ledger.take(count)
        grown, starts = replace(self, ledger=ledger), list[PlannedRollout]()
        for sample in samples:
            grown, start = grown._begin(sample, origin, inherit)
            starts.append(start)
        return grown, tuple(starts)

    def _begin(
        self, sample: int, origin: BranchPoint | None, inherit: LivePath | None = None
    ) -> tuple["TreeState", PlannedRollout]:
        path = (self.roots,) if origin is None else self.free_path(origin)
        start = PlannedRollout(
            path=path,
            sample=sample,
            seed=derive(self.seed, self.task_id, *path),
            origin=origin or BranchPoint(path=path, turn=0),
        )
        parent = inherit or LivePath(start=start)
        line = replace(parent, start=start, tool_sum=0.0, tools=0, tokens=0)
        grown = replace(self, roots=self.roots + (origin is None))
        return grown.add_lines(line), start


def origin_of(boundary: BranchPointReached) -> BranchPoint:
    """Return the place a boundary's branches begin from."""
    return BranchPoint(path=boundary.path, turn=boundary.turn)
