"""Interface of the samplers that choose among known tasks, and the uniform one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol

from agentrl.rollout.curation.outcomes import GroupOutcome, sort_groups


class CurriculumSampler(Protocol):
    """Chooses among a finite set of tasks, by id.

    Pure: `select` is a function of state, tasks and seed, and of nothing else. Its state is a
    frozen dataclass of its own kind.
    """

    def start(self) -> Any:
        """Return the state before anything is known."""
        ...

    def select(self, state: Any, tasks: Sequence[str], count: int, *, seed: int) -> tuple[str, ...]:
        """Return `count` different ones of `tasks`, or all when there are fewer."""
        ...

    def observe(self, state: Any, groups: Iterable[GroupOutcome], *, tasks: int) -> Any:
        """Return the state after a step; the order of `groups` does not matter."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSamplerState:
    """Nothing is kept."""

    kind: Literal["uniform"] = "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformTaskSampler:
    """Every task equally likely in every step, without repeats within one."""

    def start(self) -> UniformSamplerState:
        return UniformSamplerState()

    def select(
        self, state: UniformSamplerState, tasks: Sequence[str], count: int, *, seed: int
    ) -> tuple[str, ...]:
        draws = uniform_draws(tasks, seed=seed)
        return tuple(sorted(tasks, key=lambda task: draws[task])[:count])

    def observe(
        self, state: UniformSamplerState, groups: Iterable[GroupOutcome], *, tasks: int
    ) -> UniformSamplerState:
        return state


def uniform_draws(tasks: Sequence[str], *, seed: int) -> dict[str, float]:
    """Return one number in [0, 1) for each task."""
    random = Random(seed)
    return {task: random.random() for task in tasks}


def collect_rewards(groups: Iterable[GroupOutcome]) -> dict[str, tuple[float, ...]]:
    """Return the rewards of each task that has any, in the order they were drawn."""
    rewards: dict[str, tuple[float, ...]] = {}
    for group in sort_groups(groups):
        if group.rewards:
            rewards[group.task_id] = rewards.get(group.task_id, ()) + group.rewards
    return rewards


def overdue(
    tasks: Sequence[str], drawn: Mapping[str, int], *, step: int, every: int, count: int
) -> tuple[str, ...]:
    """Return up to `count` tasks that were not drawn in the last `every` steps, longest ago first.

    `drawn` names the step a task was last drawn in; one that never was counts as drawn at -1.
    """
    waiting = [task for task in tasks if step - drawn.get(task, -1) >= every]
    return tuple(sorted(waiting, key=lambda task: drawn.get(task, -1))[:count])
