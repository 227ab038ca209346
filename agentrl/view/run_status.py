"""Current state of a run, read from its folder."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from agentrl.evaluation.interval import IntervalEstimate, mean_estimate
from agentrl.store.errors import StoreError
from agentrl.store.reader import StoreReader
from agentrl.view.run_files import (
    FileFaults,
    LockOwner,
    MetricLine,
    read_lock_owner,
    read_metric_lines,
)
from agentrl.view.run_reader import RunReader

RECENT_STEPS = 10
"""Steps that figures of the loop are averaged over."""
_RECENT_GROUPS = 16
"""Trained groups that the shares of a trajectory's time are taken from."""

Phase = Literal["running", "ended", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRollout:
    """A trajectory that goes on."""

    group: int
    sample: int
    task: str
    turns: int
    used_s: float
    """Of its time budget, up to its last record."""
    quiet_s: float | None
    """Since this watch saw it move; None when it has only looked once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Shares of the trajectories' time, by where it was spent."""

    policy: float
    world: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """State of a run, as one frame shows it."""

    name: str
    phase: Phase
    step: int
    steps: int | None
    figures: Mapping[str, float]
    """Of the newest step."""
    step_s: float | None
    """Seconds of a step, of the recent ones."""
    rewards: Sequence[tuple[int, IntervalEstimate]]
    """By step, over its groups, oldest first."""
    learning: float | None
    """Share of the recent steps' time in which the trainer worked."""
    shares: TimeShares | None
    failures: Mapping[str, int]
    """By class, over the whole run."""
    ended: int
    """Trajectories."""
    groups: Mapping[str, int]
    """By state."""
    flying: Sequence[LiveRollout]
    """Those that move least first."""
    faults: Sequence[str] = ()
    """Invalid values in the run's files, one line each."""

    @property
    def left_s(self) -> float | None:
        """Return the seconds that the steps to come will take at the recent pace."""
        if self.steps is None or self.step_s is None or self.phase != "running":
            return None
        return max(0, self.steps - self.step) * self.step_s


@dataclass(slots=True)
class RunMonitor:
    """Looks at one run again and again. Owned by one thread."""

    source: RunReader
    _moved: dict[int, tuple[tuple[int, int | None], float]] = field(
        default_factory=dict[int, tuple[tuple[int, int | None], float]]
    )
    """By trajectory: where it stood, and when it was first seen there."""
    _looks: int = 0

    def look(self, *, now_s: float) -> RunStatus:
        """Return the state of the run; `now_s` is any clock that only goes forward.

        Raises `ConfigError` if the run is not there any more.
        """
        source = self.source
        source.refresh()
        store = source.store
        faults = FileFaults()
        lines = read_metric_lines(source.folder, faults)
        phase = phase_of(read_lock_owner(source.folder, faults))
        newest = lines[-1] if lines else {}
        recent = lines[-RECENT_STEPS - 1 :]
        run: Mapping[str, Any] = source.config.get("run") or {}
        counts = {} if store is None else store.counts()
        self._looks += 1
        return RunStatus(
            name=source.redaction.text(str(run.get("name") or source.folder.name)),
            phase=phase,
            step=int(newest.get("step") or 0),
            steps=run.get("steps"),
            figures={name: value for name, value in newest.items() if value is not None},
            step_s=step_seconds([t for line in recent if (t := line.get("time")) is not None]),
            rewards=[] if store is None else reward_curve(store.group_rewards()),
            learning=_compute_learning_share(recent),
            shares=None if store is None else _compute_shares(store),
            failures={} if store is None else _count_failures(store.outcomes()),
            ended=counts.get("trajectories/ended", 0),
            groups={
                name.removeprefix("groups/"): count
                for name, count in counts.items()
                if name.startswith("groups/")
            },
            flying=[] if store is None else self._flying(store, now_s),
            faults=faults.lines(source.redaction.text),
        )

    def _flying(self, store: StoreReader, now_s: float) -> list[LiveRollout]:
        rollouts: list[LiveRollout] = []
        positions: dict[int, tuple[tuple[int, int | None], float]] = {}
        for number in store.groups("open"):
            try:
                group = store.group(number)
            except StoreError:
                continue  # it was dropped and pruned between the two looks
            for one in group.open_rollouts:
                place = (one.turns, one.at)
                before = self._moved.get(one.id)
                since = before[1] if before is not None and before[0] == place else now_s
                positions[one.id] = (place, since)
                rollouts.append(
                    LiveRollout(
                        group=number,
                        sample=one.sample,
                        task=self.source.redaction.text(group.task.id),
                        turns=one.turns,
                        used_s=one.seconds,
                        quiet_s=now_s - since if self._looks > 1 else None,
                    )
                )
        self._moved = positions
        return sorted(rollouts, key=lambda one: (-(one.quiet_s or 0.0), -one.used_s))


def phase_of(owner: LockOwner | None) -> Phase:
    """Return whether a process works in a run's folder, has left it, or was killed there.

    A process of another machine is taken at its word.
    """
    if owner is None:
        return "ended"
    if owner.host != platform.node():
        return "running"
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return "killed"
    except PermissionError:
        return "running"
    return "running"


def reward_curve(groups: Sequence[tuple[int, float]]) -> list[tuple[int, IntervalEstimate]]:
    """Return the mean reward of each step with its interval over the step's groups.

    Intervals end where rewards do: at 0 and 1, or at the least and largest mean beyond them.
    """
    steps: dict[int, list[float]] = {}
    for step, mean in groups:
        steps.setdefault(step, []).append(mean)
    least = min((mean for _, mean in groups), default=0.0)
    largest = max((mean for _, mean in groups), default=1.0)
    return [
        (step, _clip_interval(mean_estimate(steps[step]), min(0.0, least), max(1.0, largest)))
        for step in sorted(steps)
    ]


def _clip_interval(estimate: IntervalEstimate, least: float, largest: float) -> IntervalEstimate:
    """Return the estimate with its interval cut; that of one group stays unbounded."""
    if estimate.tasks < 2:
        return estimate
    return replace(estimate, low=max(least, estimate.low), high=min(largest, estimate.high))


def step_seconds(times: Sequence[float]) -> float | None:
    """Return the seconds of a step, from the moments at which steps ended; None for fewer than two.

    The median: a run may have stopped for a night between two of them.
    """
    if len(times) < 2:
        return None
    return max(0.0, median(later - earlier for earlier, later in pairwise(times)))


def _compute_learning_share(lines: Sequence[MetricLine]) -> float | None:
    learn = sum(line.get("seconds/learn") or 0 for line in lines)
    whole = learn + sum(line.get("seconds/rollout") or 0 for line in lines)
    return learn / whole if whole else None


def _compute_shares(store: StoreReader) -> TimeShares | None:
    policy = world = whole = 0.0
    for number in store.groups("trained")[-_RECENT_GROUPS:]:
        try:
            group = store.group(number)
        except StoreError:
            continue  # pruned: its tokens are gone
        whole += sum(one.leaf.seconds for one in group.rollouts.values() if one.leaf)
        for node in group.tree.nodes:
            if node.source == "sampled":
                policy += node.seconds
            else:
                world += node.seconds
    if whole <= 0:
        return None
    # In a tree the shared beginning is in the seconds of every leaf and among the nodes once.
    whole = max(whole, policy + world)
    return TimeShares(
        policy=policy / whole, world=world / whole, other=1 - (policy + world) / whole
    )


def _count_failures(outcomes: Mapping[str, int]) -> dict[str, int]:
    return {
        name.removeprefix("failed_"): count
        for name, count in sorted(outcomes.items(), key=lambda item: -item[1])
        if name.startswith("failed_")
    }
