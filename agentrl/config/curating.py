"""Validation of the curation section against the rest of a config."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentrl.config.schema import plain
from agentrl.rollout.curation.rules import CurationContext, build_curation_rules, conflicts

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


def curation_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield conflicts between curation and the rest of a config."""
    yield from conflicts(build_curation_rules(plain(config.curation)), surroundings(config))


def surroundings(config: "RunConfig", *, tasks: int | None = None) -> CurationContext:
    """Return the surroundings of curation; `tasks` is the number of train tasks, if known."""
    rollout = config.rollout
    return CurationContext(
        group_size=rollout.group_size,
        tasks_per_step=rollout.tasks_per_step,
        tasks=config.env.task_limit if tasks is None else tasks,
        entropies=config.engine.tells_distributions,
        max_age=rollout.max_age,
    )
