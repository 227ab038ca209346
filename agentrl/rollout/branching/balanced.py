"""Entropy-balanced branching: ARPO and AEPO, by rule and by how the budget is split."""

from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

from agentrl.rollout.branching.aepo import (
    AepoRule,
    MonitoredRootSplit,
    ObservedSignals,
    OnlineRootSplit,
    Split,
    StaticRootSplit,
)
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.decision import (
    BranchDecision,
    BranchPoint,
    BranchPointReached,
    Path,
    PlannedRollout,
    Reason,
)
from agentrl.rollout.branching.entropy import EntropyProbe, EntropySignal
from agentrl.rollout.branching.rule import BranchChance, BranchRule, Draw, draw_seeded
from agentrl.rollout.branching.tree_state import (
    LivePath,
    PathEnded,
    PathReopened,
    TreeState,
    origin_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBalancedState:
    """State of one task's tree."""

    growth: TreeState
    roots: int
    """Leaves that begin at the prompt, as now known; no branch takes their places."""
    alone: bool = False
    observed: ObservedSignals = field(default_factory=ObservedSignals)
    """Observations of this task's trajectories alone; add it to the next task's `prior`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBalancedTopology:
    """Branches where the policy has become less certain than it was when the trajectory began.

    The defaults are AEPO with the share of roots estimated online. What a branch cannot use is
    filled with fresh trajectories, so that a task has exactly the leaves of its budget.
    """

    budget: BranchBudget
    signal: EntropySignal
    rule: BranchRule = field(default_factory=AepoRule)
    split: Split = field(default_factory=OnlineRootSplit)
    beam: int = 2
    """Trajectories that one boundary may make of one, itself among them."""
    inherit_first: bool = True
    """Measure a branch against its root's first signal; the code takes the branch's own."""
    delayed: bool = False
    """Decide by the signal of the turn before the tool result, as the code does."""
    fill_at_once: bool = False
    """Begin everything that is left when nothing lives; else one at a time, which may branch."""
    prior: ObservedSignals = field(default_factory=ObservedSignals)
    draw: Draw = draw_seeded
    name: str = "aepo"

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1, got {self.beam}; 1 disables branching")

    def start(
        self, task_id: str, *, seed: int
    ) -> tuple[EntropyBalancedState, tuple[PlannedRollout, ...]]:
        roots, alone = self._roots(), isinstance(self.split, MonitoredRootSplit)
        growth = TreeState.from_budget(task_id, seed=seed, budget=self.budget)
        growth, starts = growth.start_roots(1 if alone else roots)
        return EntropyBalancedState(growth=growth, roots=roots, alone=alone), starts

    def growth(self, state: EntropyBalancedState) -> TreeState:
        return state.growth

    def probe_tokens(self, state: EntropyBalancedState, path: Path, turn: int) -> int:
        """Return the signal's tokens; 0 where nobody would use it.

        `OnlineRootSplit` learns from every turn, for the tasks to come, even when nothing more can
        begin.
        """
        used = turn == 0 or state.growth.ledger.open or isinstance(self.split, OnlineRootSplit)
        return self.signal.tokens if used else 0

    def find_origins(self, state: EntropyBalancedState) -> frozenset[BranchPoint]:
        return frozenset()

    def reach_boundary(
        self, state: EntropyBalancedState, boundary: BranchPointReached
    ) -> tuple[EntropyBalancedState, BranchDecision]:
        growth = state.growth.add_tokens(boundary.path, boundary.tokens)
        before = growth.line(boundary.path)
        line = _record_signal(before, boundary, own_first=not self.inherit_first)
        growth = growth.replace_line(line)
        value = before.last if self.delayed else boundary.probe and boundary.probe.value
        rise = None if value is None or line.first is None else value - line.first
        free = max(0, growth.ledger.open - max(0, state.roots - growth.roots))
        decision = self._decide(state, boundary, line, rise=rise, free=free)
        if decision.reason != "branched":
            growth = growth.replace_line(replace(line, streak=0))
            return replace(state, growth=growth), decision
        line = replace(line, streak=line.streak + 1, branches=line.branches + 1)
        heir = line if self.inherit_first else replace(line, first=None)
        count = (
            sum(draw < decision.chance.value for draw in decision.draws) if decision.chance else 0
        )
        growth, children = growth.replace_line(line).branch(
            origin_of(boundary), count, inherit=heir
        )
        return replace(state, growth=growth), replace(decision, children=children)

    def fork_failed(
        self, state: EntropyBalancedState, start: PlannedRollout
    ) -> tuple[EntropyBalancedState, tuple[PlannedRollout, ...]]:
        """Free the place. A boundary that got no branch at all does not count as one."""
        growth = state.growth.drop(start.path)
        parent = next((o for o in growth.lines if o.start.path == start.origin.path), None)
        siblings = any(line.start.origin == start.origin for line in growth.lines)
        if parent is not None and not siblings:
            # A replayed world may fail when its parent has long gone on.
            streak = 0 if parent.turn == start.origin.turn else parent.streak
            undone = replace(parent, streak=streak, branches=max(0, parent.branches - 1))
            growth = growth.replace_line(undone)
        growth, starts = growth.fill(whole=self.fill_at_once)
        return replace(state, growth=growth), starts

    def finish_path(
        self, state: EntropyBalancedState, ended: PathEnded
    ) -> tuple[EntropyBalancedState, tuple[PlannedRollout, ...]]:
        line = state.growth.line(ended.path)
        growth, again = state.growth.end(ended)
        if again:
            return replace(state, growth=growth), again
        ended_for_good = line.start.sample in growth.ledger.ended
        observed = state.observed + (_observe_path(line) if ended_for_good else ObservedSignals())
        alone = state.alone and not growth.ledger.ended
        roots = state.roots
        if not alone and not isinstance(self.split, StaticRootSplit):
            roots = (self._prior() + observed).share(self.budget.leaves, self.split) or roots
        growth, due = growth.start_roots(0 if alone else roots - growth.roots)
        growth, filled = growth.fill(whole=self.fill_at_once)
        state = replace(state, growth=growth, observed=observed, roots=roots, alone=alone)
        return state, due + filled

    def reopen_path(
        self, state: EntropyBalancedState, again: PathReopened
    ) -> tuple[EntropyBalancedState, tuple[PlannedRollout, ...]]:
        growth, starts = state.growth.reopen(again.start)
        return replace(state, growth=growth), starts

    def _prior(self) -> ObservedSignals:
        return self.prior if isinstance(self.split, OnlineRootSplit) else ObservedSignals()

    def _roots(self) -> int:
        half = max(1, self.budget.leaves // 2)
        match self.split:
            case OnlineRootSplit():
                learnt = self.prior.share(self.budget.leaves, self.split)
                return min(learnt or self.split.roots or half, self.budget.leaves)
            case StaticRootSplit():
                return min(self.split.roots or half, self.budget.leaves)
            case MonitoredRootSplit():
                return self.budget.leaves

    def _decide(
        self,
        state: EntropyBalancedState,
        boundary: BranchPointReached,
        line: LivePath,
        *,
        rise: float | None,
        free: int,
    ) -> BranchDecision:
        """Return the decision, its children still missing."""
        growth, cap = state.growth, self.budget.path_branches
        reason: Reason | None = None
        if boundary.turn == 0:
            reason = "opening"
        elif state.alone:
            reason = "alone"
        elif not free:
            reason = "budget"
        elif self.beam == 1 or (cap is not None and line.branches >= cap):
            reason = "path"
        elif rise is None:
            reason = "unmeasured"
        chance, draws = None, ()
        if reason is None and rise is not None:
            chance = self.rule.chance(rise, line.streak)
            draws = self._draws(growth, boundary, min(self.beam - 1, free))
            reason = _verdict(chance, draws)
        return BranchDecision(
            task_id=growth.task_id,
            topology=self.name,
            rule={"rule": type(self.rule).__name__.removesuffix("Rule")} | _parameters(self.rule),
            sample=line.start.sample,
            boundary=boundary,
            reason=reason or "unmeasured",
            first=line.first,
            rise=rise,
            streak=line.streak,
            chance=chance,
            draws=draws,
            open=free,
        )

    def _draws(
        self, growth: TreeState, boundary: BranchPointReached, count: int
    ) -> tuple[float, ...]:
        where = ("branch", *boundary.path, "turn", boundary.turn)
        return tuple(self.draw(growth.seed, growth.task_id, (*where, i)) for i in range(count))


def _verdict(chance: BranchChance, draws: tuple[float, ...]) -> Reason:
    if any(draw < chance.value for draw in draws):
        return "branched"
    return "draw" if chance.score is None else "threshold"


def _record_signal(line: LivePath, boundary: BranchPointReached, *, own_first: bool) -> LivePath:
    probe: EntropyProbe | None = boundary.probe
    line = replace(line, turn=boundary.turn)
    if probe is None:
        return replace(line, last=None)
    if boundary.turn == 0:
        return replace(line, first=probe.value, last=probe.value)
    first = probe.value if line.first is None and own_first else line.first
    return replace(
        line,
        first=first,
        last=probe.value,
        tool_sum=line.tool_sum + probe.value,
        tools=line.tools + 1,
    )


def _observe_path(line: LivePath) -> ObservedSignals:
    """Return the observations of an ended trajectory; a branch shares its root's opening."""
    opening = line.first if line.is_root else None
    return ObservedSignals(
        root_sum=opening or 0.0,
        roots=int(opening is not None),
        tool_sum=line.tool_sum,
        tools=line.tools,
    )


def _parameters(rule: BranchRule) -> dict[str, Any]:
    return asdict(rule) if is_dataclass(rule) and not isinstance(rule, type) else {}
