"""ARPO's branch decision (Dong et al. 2025, arXiv 2507.19849), as its code has it and as printed.

Weights are for the mean signal: 20 times those for the code's sum over 20 tokens.
"""

from dataclasses import dataclass

from agentrl.rollout.branching.rule import BranchChance, clip


@dataclass(frozen=True, slots=True, kw_only=True)
class ArpoRule:
    """The code: a branch when `clip(U - weight * rise) <= base`, so chance `base + weight * rise`.

    It knows no penalty: one path may take every branch. (At `base` 1 exactly the code's clip makes
    it branch always; here the chance still falls with the signal.)
    """

    base: float = 0.5
    """The chance when the uncertainty has not risen; a larger one branches more."""
    weight: float = 4.0
    """With `code_signal`: 0.2."""

    def chance(self, rise: float, streak: int) -> BranchChance:
        return BranchChance(value=clip(self.base + self.weight * rise))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArpoPaperRule:
    """The paper: a branch exactly when `alpha + beta * rise > threshold`. It draws nothing."""

    alpha: float = 0.5
    beta: float = 4.0
    threshold: float = 0.5

    def chance(self, rise: float, streak: int) -> BranchChance:
        score = self.alpha + self.beta * rise
        return BranchChance(
            value=float(score > self.threshold), score=score, threshold=self.threshold
        )
