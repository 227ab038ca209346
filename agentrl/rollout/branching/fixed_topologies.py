"""Topologies that look at no entropy: chains, a fixed fan-out, Tree-GRPO's random expansion."""

from dataclasses import dataclass, replace

from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.decision import (
    BranchDecision,
    BranchPoint,
    BranchPointReached,
    Path,
    PlannedRollout,
    Reason,
)
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.rule import Draw, draw_seeded
from agentrl.rollout.branching.tree_state import (
    LivePath,
    PathEnded,
    PathReopened,
    TreeState,
    origin_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutTopology:
    """Splits every trajectory into `width` at given turns. Without turns these are plain chains.

    `roots` trajectories begin at the prompt (0: as many as it takes); what branches leave of the
    budget begins there once nothing else lives.
    """

    budget: BranchBudget
    width: int = 2
    turns: tuple[int, ...] = ()
    roots: int = 0
    name: str = "fan_out"
    signal: EntropySignal | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or any(turn < 1 for turn in self.turns):
            raise ValueError(
                "a fan-out needs width >= 1 and turns >= 1 (turn 0 has no tool result before it), "
                f"got width={self.width} and turns={self.turns}"
            )

    def start(self, task_id: str, *, seed: int) -> tuple[TreeState, tuple[PlannedRollout, ...]]:
        per_root = self.width ** len(self.turns)
        roots = self.roots or -(-self.budget.leaves // per_root)
        return TreeState.from_budget(task_id, seed=seed, budget=self.budget).start_roots(roots)

    def growth(self, state: TreeState) -> TreeState:
        return state

    def probe_tokens(self, state: TreeState, path: Path, turn: int) -> int:
        return 0

    def find_origins(self, state: TreeState) -> frozenset[BranchPoint]:
        return frozenset()

    def reach_boundary(
        self, state: TreeState, boundary: BranchPointReached
    ) -> tuple[TreeState, BranchDecision]:
        state = state.add_tokens(boundary.path, boundary.tokens)
        line, free = state.line(boundary.path), state.ledger.open
        reason = self._reason(boundary, line, free)
        children: tuple[PlannedRollout, ...] = ()
        if reason == "branched":
            line = replace(line, streak=line.streak + 1, branches=line.branches + 1)
            state, children = state.replace_line(line).branch(
                origin_of(boundary), self.width - 1, inherit=line
            )
        decision = BranchDecision(
            task_id=state.task_id,
            topology=self.name,
            rule={"rule": "FanOut", "width": self.width, "turns": list(self.turns)},
            sample=line.start.sample,
            boundary=boundary,
            reason=reason,
            open=free,
            children=children,
        )
        return state, decision

    def fork_failed(
        self, state: TreeState, start: PlannedRollout
    ) -> tuple[TreeState, tuple[PlannedRollout, ...]]:
        return state.drop(start.path).fill(whole=True)

    def finish_path(
        self, state: TreeState, ended: PathEnded
    ) -> tuple[TreeState, tuple[PlannedRollout, ...]]:
        state, again = state.end(ended)
        state, filled = state.fill(whole=True)
        return state, again + filled

    def reopen_path(
        self, state: TreeState, again: PathReopened
    ) -> tuple[TreeState, tuple[PlannedRollout, ...]]:
        return state.reopen(again.start)

    def _reason(self, boundary: BranchPointReached, line: LivePath, free: int) -> Reason:
        if boundary.turn == 0:
            return "opening"
        cap = self.budget.path_branches
        if boundary.turn not in self.turns or self.width == 1:
            return "fixed"
        if cap is not None and line.branches >= cap:
            return "path"
        return "branched" if free else "budget"


def chains(budget: BranchBudget) -> FanOutTopology:
    """Return the topology that never branches."""
    return FanOutTopology(budget=budget, width=1, name="chains")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeExpansion:
    """One of Tree-GRPO's trees: the places drawn so far for its next chains."""

    picks: tuple[BranchPoint, ...]
    """One per chain still to be begun, in the order of their rounds."""
    seen: int = 1
    ordinal: int = 0
    """Chains begun after the first, to number the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpoState:
    """State of one task's trees."""

    growth: TreeState
    trees: tuple[TreeExpansion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpoTopology:
    """Tree-GRPO (arXiv 2509.21240): random expansion of `trees` independent trees.

    Each begins as one chain. In each of `rounds` rounds, `width` places are drawn uniformly and
    with replacement among the root and all turns but the last of every chain, and a new chain runs
    from each to its end: `1 + rounds * width` leaves per tree. Draws are reservoirs of one, kept up
    to date as places appear, so only `width * rounds` places per tree must be held at any time.
    """

    trees: int = 2
    rounds: int = 1
    width: int = 2
    tokens: int | None = None
    retries: int = 2
    draw: Draw = draw_seeded
    name: str = "tree_grpo"
    signal: EntropySignal | None = None

    def __post_init__(self) -> None:
        if self.trees < 1 or self.rounds < 0 or self.width < 1:
            raise ValueError(
                "Tree-GRPO needs trees >= 1, rounds >= 0 and width >= 1, got "
                f"{self.trees}, {self.rounds} and {self.width}"
            )

    @property
    def budget(self) -> BranchBudget:
        """Return the leaves that these numbers make."""
        leaves = self.trees * (1 + self.rounds * self.width)
        return BranchBudget(leaves=leaves, tokens=self.tokens, retries=self.retries)

    def start(self, task_id: str, *, seed: int) -> tuple[TreeGrpoState, tuple[PlannedRollout, ...]]:
        growth = TreeState.from_budget(task_id, seed=seed, budget=self.budget)
        growth, starts = growth.start_roots(self.trees)
        trees = tuple(
            TreeExpansion(picks=(start.origin,) * (self.rounds * self.width)) for start in starts
        )
        return TreeGrpoState(growth=growth, trees=trees), starts

    def growth(self, state: TreeGrpoState) -> TreeState:
        return state.growth

    def probe_tokens(self, state: TreeGrpoState, path: Path, turn: int) -> int:
        return 0

    def find_origins(self, state: TreeGrpoState) -> frozenset[BranchPoint]:
        drawn = {pick for tree in state.trees for pick in tree.picks}
        running = {line.start.origin for line in state.growth.lines}
        return frozenset(place for place in drawn | running if place.turn)

    def reach_boundary(
        self, state: TreeGrpoState, boundary: BranchPointReached
    ) -> tuple[TreeGrpoState, BranchDecision]:
        growth = state.growth.add_tokens(boundary.path, boundary.tokens)
        number, here = boundary.path[0], origin_of(boundary)
        tree, keep = state.trees[number], False
        if boundary.turn:
            tree = self._offer_place(growth, number, tree, here)
            keep = here in tree.picks
        decision = BranchDecision(
            task_id=growth.task_id,
            topology=self.name,
            rule={"rule": "TreeGrpo", "rounds": self.rounds, "width": self.width},
            sample=growth.line(boundary.path).start.sample,
            boundary=boundary,
            reason="fixed" if boundary.turn else "opening",
            open=growth.ledger.open,
            keep=keep,
        )
        return replace(
            state, growth=growth, trees=_replace_tree(state.trees, number, tree)
        ), decision

    def fork_failed(
        self, state: TreeGrpoState, start: PlannedRollout
    ) -> tuple[TreeGrpoState, tuple[PlannedRollout, ...]]:
        """Begin a chain at the same tree's root instead."""
        growth = state.growth.drop(start.path)
        root = BranchPoint(path=start.path[:1], turn=0)
        growth, starts = growth.branch(root, 1)
        return replace(state, growth=growth), starts

    def finish_path(
        self, state: TreeGrpoState, ended: PathEnded
    ) -> tuple[TreeGrpoState, tuple[PlannedRollout, ...]]:
        """Begin a failure again, or the next round of a tree that has ended its last one."""
        line = state.growth.line(ended.path)
        growth, again = state.growth.end(ended, elsewhere=line.start.origin)
        number = ended.path[0]
        tree = state.trees[number]
        if again:
            return replace(state, growth=growth), again
        if ended.failed and line.start.sample in growth.ledger.free:
            growth, again = growth.branch(line.start.origin, 1)
            return replace(state, growth=growth), again
        if any(other.start.path[0] == number for other in growth.lines):
            return replace(state, growth=growth), ()
        starts: list[PlannedRollout] = []
        for place in tree.picks[: self.width]:
            growth, rollouts = growth.branch(place, 1)
            starts += rollouts
        tree = replace(tree, picks=tree.picks[self.width :])
        return replace(state, growth=growth, trees=_replace_tree(state.trees, number, tree)), tuple(
            starts
        )

    def reopen_path(
        self, state: TreeGrpoState, again: PathReopened
    ) -> tuple[TreeGrpoState, tuple[PlannedRollout, ...]]:
        """Begin it again: a chain from the prompt as it was, another at its tree's root."""
        root = BranchPoint(path=again.start.path[:1], turn=0)
        growth, starts = state.growth.reopen(again.start, elsewhere=root)
        return replace(state, growth=growth), starts

    def _offer_place(
        self, growth: TreeState, number: int, tree: TreeExpansion, here: BranchPoint
    ) -> TreeExpansion:
        """Return the tree after a place came up: each reservoir takes the n-th with chance 1/n."""
        count = tree.seen + 1
        # Counted from the end, a reservoir keeps its number while those before it are used up.
        picks = tuple(
            here if self._draw(growth, number, count, len(tree.picks) - i) < 1 / count else pick
            for i, pick in enumerate(tree.picks)
        )
        return replace(tree, picks=picks, seen=count)

    def _draw(self, growth: TreeState, number: int, seen: int, reservoir: int) -> float:
        return self.draw(growth.seed, growth.task_id, ("expand", number, seen, reservoir))


def _replace_tree(
    trees: tuple[TreeExpansion, ...], number: int, tree: TreeExpansion
) -> tuple[TreeExpansion, ...]:
    return (*trees[:number], tree, *trees[number + 1 :])
