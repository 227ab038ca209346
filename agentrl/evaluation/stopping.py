"""Early stop of an evaluation that knows enough, by a rule whose intervals still cover."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.config.evaluate import UntilSection
from agentrl.evaluation.scores import ScoringRules, passes


def is_enough(until: UntilSection, rewards: Sequence[Sequence[float]], rules: ScoringRules) -> bool:
    """Return whether to stop after these tasks, which are the first ones in their order.

    The rule of Chow and Robbins (1965) for intervals of fixed width: whether to stop depends on how
    wide the interval is and not on where it lies, so that looking often costs no coverage in the
    limit of narrow intervals. `min_tasks` keeps it from stopping on the luck of the first few.
    """
    tasks = len(rewards)
    if tasks < until.min_tasks or (tasks - until.min_tasks) % until.every:
        return False
    estimate = passes([task_rewards for task_rewards in rewards if task_rewards], rules)
    return estimate is not None and (estimate.high - estimate.low) / 2 <= until.half_width


@dataclass(slots=True, eq=False)
class OrderedStopTracker:
    """The tasks as they end, looked at in the order they were asked for.

    Short trajectories end first: a look at what has ended would see the quick ones only. So it is
    at the first n tasks once all of them have ended, and what stops the evaluation is a function of
    their rewards alone, however the timing falls.
    """

    until: UntilSection | None
    rules: ScoringRules
    samples: int
    stopped_at: int | None = None
    """Number of tasks that were enough; None before that."""
    _ended: dict[int, int] = field(default_factory=dict[int, int])
    _rewards: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    _first: list[list[float]] = field(default_factory=list[list[float]])

    def record_end(self, task: int, reward: float | None) -> None:
        """Take the end of a trajectory of task number `task`; None for one that broke."""
        if self.until is None:
            return
        self._ended[task] = self._ended.get(task, 0) + 1
        if reward is not None:
            self._rewards.setdefault(task, []).append(reward)
        while self.stopped_at is None and self._ended.get(len(self._first), 0) >= self.samples:
            self._first.append(self._rewards.get(len(self._first), []))
            if is_enough(self.until, self._first, self.rules):
                self.stopped_at = len(self._first)
