"""Groups as curation sees them: rewards and lengths, no tokens. Values that JSON can hold."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.trajectory import Leaf, Tree, reward_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSummary:
    """Outcome of one trajectory."""

    sample: int
    reward: float | None
    """None for a failure, which is no observation of anything."""
    tokens: int
    turns: int
    version: int
    """The oldest that sampled one of its tokens; -1 without sampled tokens."""
    seconds: float = 0.0
    turn_rewards: tuple[float, ...] = ()
    logprob: float = 0.0
    """Sum over its sampled tokens, under the policies that sampled them; a token of which the
    engine reported no number counts as certain."""

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(
                f"sample {self.sample}: its reward is {self.reward}, but a reward must be a finite "
                "number; fix the environment's reward"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """Outcomes of the trajectories of one task in one step."""

    step: int
    ordinal: int
    """Index of the group within its step, counted from 0 in the order they were drawn."""
    task_id: str
    asked: int
    """Number of trajectories requested, the second phase of an allocation included."""
    results: tuple[RolloutSummary, ...]

    @property
    def key(self) -> str:
        """Name of this group within its run."""
        return f"{self.step}/{self.ordinal}"

    @property
    def valid(self) -> tuple[RolloutSummary, ...]:
        """Return the results that have a reward, in sample order, whatever order they came in."""
        results = [result for result in self.results if result.reward is not None]
        return tuple(sorted(results, key=lambda result: result.sample))

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return the rewards of the valid results."""
        return tuple(r.reward for r in self.valid if r.reward is not None)

    @property
    def tokens(self) -> int:
        """Return the sampled tokens of all trajectories, failures among them."""
        return sum(result.tokens for result in self.results)

    @property
    def oldest_version(self) -> int:
        """Return the oldest version that sampled a token which can train; -1 when there is none."""
        return min((r.version for r in self.valid if r.version >= 0), default=-1)


def score(reward: float) -> float:
    """Return a reward cut to [0, 1]: what samplers and allocations take for a success rate."""
    return min(max(reward, 0.0), 1.0)


def success_rate(group: GroupOutcome) -> float | None:
    """Return the mean score of the trajectories that have a reward; None when none has."""
    return mean(score(reward) for reward in group.rewards)


def mean(values: Iterable[float]) -> float | None:
    """Return a mean that does not depend on the order of the values; None for no value."""
    numbers = tuple(values)
    # The rounded mean of equal numbers need not be that number: all right must be exactly 1.
    if numbers and min(numbers) == max(numbers):
        return numbers[0]
    return math.fsum(numbers) / len(numbers) if numbers else None


def sort_groups(groups: Iterable[GroupOutcome]) -> list[GroupOutcome]:
    """Return groups in the order they were drawn: what is learnt never depends on arrival."""
    return sorted(groups, key=lambda group: (group.step, group.ordinal))


def result_of(tree: Tree, leaf: Leaf) -> RolloutSummary:
    """Return one trajectory's end as a result; the leaf need not be on the tree yet."""
    path = () if leaf.node is None else tree.path(leaf.node)
    sampled = [node for node in path if node.source == "sampled"]
    return RolloutSummary(
        sample=leaf.sample,
        reward=reward_of(leaf.outcome),
        tokens=sum(len(node.token_ids) for node in sampled),
        turns=len({node.turn for node in sampled}),
        version=min((v for node in sampled for v in node.versions), default=-1),
        seconds=leaf.seconds,
        turn_rewards=leaf.turn_rewards,
        logprob=math.fsum(x for node in sampled for x in node.logprobs if math.isfinite(x)),
    )
