"""DART's groups: of a group's trajectories, which ones train.

Source: the released code of arXiv 2509.23866. Its data manager stores no failure that was over
after a few steps, and cuts what a task has collected to eight, a success and a failure among them.
"""

from dataclasses import dataclass
from random import Random

from agentrl.errors import ConfigError
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary
from agentrl.runtime.seeds import derive


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedRollouts:
    """Leave out failures that are too short, then cut to `most` with both outcomes kept."""

    most: int = 8
    min_failed_turns: int = 0
    """A trajectory without success trains from so many policy messages on; 4 in DART's code."""

    def __post_init__(self) -> None:
        if self.most < 2:
            raise ConfigError(
                f"curation.members.most is {self.most}, but a success and a failure are two "
                "trajectories; set it to at least 2"
            )

    def choose_samples(
        self, group: GroupOutcome, *, seed: int, success_above: float
    ) -> frozenset[int]:
        """Return the samples that train; those without a reward are not among them.

        Which ones go depends on the seed, the group's name and the samples, on no order.
        """
        won = [r.sample for r in group.valid if _reward(r) > success_above]
        lost = [
            r.sample
            for r in group.valid
            if _reward(r) <= success_above and r.turns >= self.min_failed_turns
        ]
        random = Random(derive(seed, "members", group.key))
        picks = [random.choice(side) for side in (won, lost) if side]
        rest = [sample for sample in (*won, *lost) if sample not in picks]
        more = random.sample(rest, min(len(rest), self.most - len(picks)))
        return frozenset((*picks, *more))


def _reward(result: RolloutSummary) -> float:
    return result.reward or 0.0
