"""CDAS: tasks as difficult as the policy is able. Source: arXiv 2505.17652 and its code."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentrl.rollout.curation.outcomes import GroupOutcome, mean, score
from agentrl.rollout.curation.sampling import collect_rewards, uniform_draws


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDifficulty:
    """Of one task: the running mean of expected minus observed success."""

    value: float
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CdasState:
    """Competence of the policy and difficulty of the tasks seen; unseen ones are at 0."""

    kind: Literal["cdas"] = "cdas"
    competence: float = 0.0
    difficulties: Mapping[str, TaskDifficulty] = field(default_factory=dict[str, TaskDifficulty])
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CdasTaskSampler:
    """Half of the tasks from just below the policy's competence, half from just above."""

    warmup_steps: int = 1
    first_halved: bool = False
    """Count the initial 0 as an observation, as the released code does."""

    def start(self) -> CdasState:
        return CdasState()

    def select(
        self, state: CdasState, tasks: Sequence[str], count: int, *, seed: int
    ) -> tuple[str, ...]:
        draws = uniform_draws(tasks, seed=seed)
        if state.steps < self.warmup_steps:
            return tuple(sorted(tasks, key=lambda task: draws[task])[:count])
        return nearest(state, count, draws=draws)

    def observe(self, state: CdasState, groups: Iterable[GroupOutcome], *, tasks: int) -> CdasState:
        """Return the state after a step; `tasks` is how many the sampler chooses from.

        Everything expected is expected from the state before the step, so the order of `groups`
        does not matter.
        """
        rates = {
            task: rate
            for task, rewards in collect_rewards(groups).items()
            if (rate := mean(score(reward) for reward in rewards)) is not None
        }
        after = dict(state.difficulties)
        moved: list[float] = []
        for task, rate in rates.items():
            old = state.difficulties.get(task, TaskDifficulty(value=0.0, updates=0))
            updates = old.updates + 1
            weight = updates + self.first_halved
            surprise = predict_rate(old.value, state.competence) - rate
            value = ((weight - 1) * old.value + surprise) / weight
            moved.append(value - old.value)
            after[task] = TaskDifficulty(value=value, updates=updates)
        return CdasState(
            competence=state.competence - math.fsum(moved) / tasks,
            difficulties=after,
            steps=state.steps + 1,
        )


def predict_rate(difficulty: float, competence: float) -> float:
    """Return the success rate that a task of this difficulty should have."""
    return 1 / (1 + math.exp(difficulty - competence))


def nearest(state: CdasState, count: int, *, draws: Mapping[str, float]) -> tuple[str, ...]:
    """Return the tasks of `draws` nearest to the competence, half from each side.

    A side that is short is filled from the other; an odd one goes to the nearest left over (the
    released code loses it). Equal distances, such as all unseen tasks, are in the order of `draws`.
    """

    def difficulty(task: str) -> float:
        estimate = state.difficulties.get(task)
        return estimate.value if estimate else 0.0

    def distance(task: str) -> tuple[float, float]:
        return abs(difficulty(task) - state.competence), draws[task]

    near = sorted(draws, key=distance)
    easy = [task for task in near if difficulty(task) <= state.competence]
    hard = [task for task in near if difficulty(task) > state.competence]
    half = count // 2
    picks = dict.fromkeys([*easy[:half], *hard[:half]])
    picks |= dict.fromkeys([task for task in near if task not in picks][: count - len(picks)])
    return tuple(sorted(picks, key=lambda task: draws[task]))
