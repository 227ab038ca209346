"""Step 6 of the flow: what the trainer is given of a batch; other processes can read it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.learn.sample import Trainable, TrainingGroup, TurnWeights, groups_of
from agentrl.trajectory import Tree, reward_of


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The groups of a batch that have a reward, and how much there was besides."""

    groups: tuple[TrainingGroup, ...]
    owners: tuple[int, ...]
    """The place in the batch of each group's tree."""
    trees: int
    trajectories: int
    """All that ended, failed ones too."""

    @classmethod
    def from_trees(
        cls,
        trees: Sequence[Tree],
        trainable: Trainable | None = None,
        weights: Sequence[TurnWeights] | None = None,
    ) -> "TrainingBatch":
        """Return a batch of trees; see `groups_of`, whose errors it raises."""
        return cls(
            groups=groups_of(trees, trainable, weights),
            owners=tuple(at for at, tree in enumerate(trees) if _has_reward(tree)),
            trees=len(trees),
            trajectories=sum(len(tree.leaves) for tree in trees),
        )

    def keep_groups(self, places: Sequence[int]) -> "TrainingBatch":
        """Return the batch with the groups at these places; trajectories of the others failed."""
        return replace(
            self,
            groups=tuple(self.groups[place] for place in places),
            owners=tuple(self.owners[place] for place in places),
        )

    @property
    def failed(self) -> int:
        """Number of trajectories without a reward."""
        return self.trajectories - sum(len(group.samples) for group in self.groups)


def _has_reward(tree: Tree) -> bool:
    return any(reward_of(leaf.outcome) is not None for leaf in tree.leaves)
