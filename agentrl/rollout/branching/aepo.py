"""AEPO (Dong et al. 2025, arXiv 2510.14545): a penalty on branches in a row, and how many roots.

Code and paper differ; both are here. Weights and temperatures are for the mean signal: 20 times
those for the code's sum over 20 tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal

from agentrl.rollout.branching.rule import BranchChance, clip

SplitForm = Literal["code", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AepoRule:
    """The code: a branch when `clip((U + weight * rise) * f) >= base`, `f = 1 - penalty * streak`.

    That is a chance of `1 - base / f + weight * rise`; here it is drawn as `U < chance`, the same
    event with `1 - U` for `U`. The code counts the streak per task, in iterations that an
    event-driven runner does not have; here it is the path's own, as in the paper.
    """

    base: float = 0.5
    """One less the chance when the uncertainty has not risen; a larger one branches less."""
    weight: float = 4.0
    """With `code_signal`: 0.2."""
    penalty: float = 0.05
    """Penalty of each branch in a row; at `1 / penalty` of them nothing branches."""

    def __post_init__(self) -> None:
        if not 0 < self.base <= 1:
            raise ValueError(f"base must be within (0, 1], got {self.base}")
        if self.penalty < 0:
            raise ValueError(f"penalty must be at least 0 (0 disables it), got {self.penalty}")

    def chance(self, rise: float, streak: int) -> BranchChance:
        factor = max(0.0, 1 - self.penalty * streak)
        if factor == 0:
            return BranchChance(value=0.0, factor=0.0)
        return BranchChance(value=clip(1 - self.base / factor + self.weight * rise), factor=factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class AepoPaperRule:
    """The paper: a branch exactly when `(alpha + gamma * rise) * f > threshold`.

    `f = 1 - penalty * streak`, never below 0. The paper writes one gamma for both; `penalty` None
    does too. Its values are not printed.
    """

    alpha: float = 0.5
    gamma: float = 4.0
    threshold: float = 0.5
    penalty: float | None = 0.05

    def chance(self, rise: float, streak: int) -> BranchChance:
        penalty = self.gamma if self.penalty is None else self.penalty
        factor = max(0.0, 1 - penalty * streak)
        score = (self.alpha + self.gamma * rise) * factor
        return BranchChance(
            value=float(score > self.threshold),
            factor=factor,
            score=score,
            threshold=self.threshold,
        )


def root_share(
    leaves: int,
    *,
    root: float,
    tool: float,
    temperature: float = 10.0,
    form: SplitForm = "code",
) -> int:
    """Return the number of a task's leaves that begin at its prompt; the others may be branches.

    `root` is the signal at the start of trajectories, `tool` the mean one after tool results: where
    the prompt leaves more open than the tools do, more begin there. Both forms start from
    `leaves * sigmoid(temperature * (root - tool))`. The code takes the floor and adds one, the
    paper prints no rounding and gets the nearest. `temperature` is 0.5 with `code_signal`.
    """
    if leaves < 1:
        raise ValueError(f"a task needs at least one leaf, got {leaves}")
    share = leaves * _sigmoid(temperature * (root - tool))
    roots = math.floor(share) + 1 if form == "code" else math.floor(share + 0.5)
    return min(leaves, max(1, roots))


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredRootSplit:
    """AEPO's pre-monitoring: one trajectory alone, then as many roots as its signals ask for.

    Unlike the paper's, the first trajectory is one of the leaves, not thrown away.
    """

    temperature: float = 10.0
    form: SplitForm = "code"
    count_opening: bool = False
    """Let the first turn's signal count among the tool signals, as the code does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRootSplit:
    """The same share, estimated from the trajectories that have ended, of this and earlier tasks.

    No trajectory is spent on looking. Until one has ended, `roots` begin: 0 is half of the leaves.
    """

    temperature: float = 10.0
    form: SplitForm = "code"
    count_opening: bool = False
    """Let the first turn's signal count among the tool signals, as the code does."""
    roots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRootSplit:
    """So many roots whatever the signals say; 0 is half of the leaves, ARPO's best."""

    roots: int = 0


Split = OnlineRootSplit | MonitoredRootSplit | StaticRootSplit
"""Rule for the number of leaves that begin at the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSignals:
    """Sums over the trajectories that have ended; add two to carry one task's on to the next."""

    root_sum: float = 0.0
    roots: int = 0
    tool_sum: float = 0.0
    tools: int = 0

    def __add__(self, other: "ObservedSignals") -> "ObservedSignals":
        return ObservedSignals(
            root_sum=self.root_sum + other.root_sum,
            roots=self.roots + other.roots,
            tool_sum=self.tool_sum + other.tool_sum,
            tools=self.tools + other.tools,
        )

    def share(self, leaves: int, split: MonitoredRootSplit | OnlineRootSplit) -> int | None:
        if not self.roots:
            return None
        root = self.root_sum / self.roots
        opening = (self.root_sum, self.roots) if split.count_opening else (0.0, 0)
        signals = self.tools + opening[1]
        return root_share(
            leaves,
            root=root,
            tool=(self.tool_sum + opening[0]) / signals if signals else root,
            temperature=split.temperature,
            form=split.form,
        )


def _sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))
