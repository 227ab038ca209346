"""VADE: Thompson sampling on a Beta posterior of each task's success rate.

Source: arXiv 2511.18902; its decay is known by the abstract only, and the form of it is our own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentrl.rollout.curation.outcomes import GroupOutcome, score
from agentrl.rollout.curation.sampling import collect_rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvidence:
    """Successes and failures to succeed that a task still counts for; fractions are allowed."""

    successes: float = 0.0
    misses: float = 0.0

    @property
    def posterior(self) -> tuple[float, float]:
        """Return the parameters of the Beta distribution of the success rate."""
        return self.successes + 1.0, self.misses + 1.0

    @property
    def total(self) -> float:
        """Number of trajectories this is worth."""
        return self.successes + self.misses

    def scale(self, factor: float) -> "TaskEvidence":
        """Return the evidence, shrunk towards knowing nothing."""
        return TaskEvidence(successes=self.successes * factor, misses=self.misses * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class VadeState:
    """Evidence of the tasks seen."""

    kind: Literal["vade"] = "vade"
    evidence: Mapping[str, TaskEvidence] = field(default_factory=dict[str, TaskEvidence])


@dataclass(frozen=True, slots=True, kw_only=True)
class VadeTaskSampler:
    """Tasks whose drawn success rate promises most: hard but possible ones, about 1 in 3."""

    local_decay: float = 0.7
    """Decay of a task's old evidence when it is observed again; 1 forgets nothing."""
    global_decay: float = 0.995
    """Decay of every task's evidence at the end of every step."""
    max_evidence: float | None = 32.0
    """Most trajectories a task may count for, about 4 groups; null sets no bound."""

    def start(self) -> VadeState:
        return VadeState()

    def select(
        self, state: VadeState, tasks: Sequence[str], count: int, *, seed: int
    ) -> tuple[str, ...]:
        posteriors = [state.evidence.get(task, TaskEvidence()).posterior for task in tasks]
        if not posteriors:
            return ()
        alpha, beta = np.asarray(posteriors).T
        rates = np.random.default_rng(seed).beta(alpha, beta)
        return most_informative(dict(zip(tasks, map(float, rates), strict=True)), count)

    def observe(self, state: VadeState, groups: Iterable[GroupOutcome], *, tasks: int) -> VadeState:
        """Return the state after a step: what was seen first, then everything a little forgotten.

        The rewards of a task are added up over the step, so the order of `groups` does not matter.
        """
        after = dict(state.evidence)
        for task, rewards in collect_rewards(groups).items():
            after[task] = self.update(after.get(task, TaskEvidence()), rewards)
        return VadeState(
            evidence={task: counts.scale(self.global_decay) for task, counts in after.items()}
        )

    def update(self, known: TaskEvidence, rewards: Sequence[float]) -> TaskEvidence:
        """Return a task's evidence after one step's rewards, before the global decay."""
        won = float(np.sum(np.sort([score(reward) for reward in rewards])))
        old = known.scale(self.local_decay)
        new = TaskEvidence(successes=old.successes + won, misses=old.misses + len(rewards) - won)
        if self.max_evidence is None or new.total <= self.max_evidence:
            return new
        return new.scale(self.max_evidence / new.total)


def information(rate: float) -> float:
    """Return the information of a task of this success rate: p (1 - p)^2, highest at p = 1/3."""
    return rate * (1 - rate) ** 2


def most_informative(rates: Mapping[str, float], count: int) -> tuple[str, ...]:
    """Return the `count` tasks with the highest information, the highest first."""
    return tuple(sorted(rates, key=lambda task: (-information(rates[task]), task))[:count])
