"""Search in virtual time for the concurrency, over-provisioning and staleness of a trace."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentrl.simulate.study import StudyResult, StudySetting, study

CLOSE_ENOUGH = 0.97
"""A cheaper setting wins when it reaches this share of the best rate: less is fresher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGrid:
    """Values to try."""

    concurrency: tuple[int, ...]
    over_provision: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)
    """In `partial`."""
    max_staleness: tuple[int, ...] = (1, 2, 4)
    """In `async`."""


def grid_around(setting: StudySetting) -> SearchGrid:
    """Return the concurrencies worth trying: from one to four times the engine's slots."""
    slots = setting.speed.slots
    return SearchGrid(concurrency=tuple(max(1, round(slots * x)) for x in (1, 2, 4)))


def settings(setting: StudySetting, grid: SearchGrid) -> Iterator[StudySetting]:
    """Yield every setting of a grid, in the modes that its keys mean something in."""
    for concurrency in grid.concurrency:
        policy = replace(setting.policy, concurrency=concurrency)
        for factor in grid.over_provision:
            yield replace(setting, policy=replace(policy, mode="partial", over_provision=factor))
        for staleness in grid.max_staleness:
            yield replace(setting, policy=replace(policy, mode="async", max_staleness=staleness))


def search(
    setting: StudySetting,
    grid: SearchGrid | None = None,
    on_study: Callable[[], None] = lambda: None,
) -> list[StudyResult]:
    """Play every setting of a grid."""
    results: list[StudyResult] = []
    for one in settings(setting, grid or grid_around(setting)):
        results.append(study(one))
        on_study()
    return results


def recommend(results: Sequence[StudyResult], mode: str) -> StudyResult:
    """Return the cheapest setting of a mode that is close to its best rate of trained tokens.

    Cheap is fresh first (staleness, over-provisioning), then few environments.
    """
    candidates = [one for one in results if one.setting.policy.mode == mode]
    if not candidates:
        raise ValueError(f"no result has mode {mode!r}; search a grid that includes it")
    best = max(one.tokens_per_s for one in candidates)
    near = [one for one in candidates if one.tokens_per_s >= CLOSE_ENOUGH * best]
    return min(near, key=_cost)


def _cost(one: StudyResult) -> tuple[float, float]:
    policy = one.setting.policy
    fresh = policy.max_staleness if policy.mode == "async" else policy.over_provision
    return fresh, policy.concurrency
