"""Step 6 of the flow: trees become samples, grouped by task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from agentrl.errors import LearnError
from agentrl.message import ImageSpan
from agentrl.trajectory import Trajectory, Tree, Truncated, reward_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One trajectory that has a reward. Arrays are per token of the whole context."""

    task_id: str
    sample: int
    reward: float
    token_ids: Int[ndarray, " tokens"]
    mask: Bool[ndarray, " tokens"]
    """True on the tokens that train: those the policy sampled, unless they are too old."""
    behaviour: Float[ndarray, " tokens"]
    """The engine's log-prob of each sampled token; what it holds elsewhere is never read."""
    versions: Int[ndarray, " tokens"]
    turns: Int[ndarray, " tokens"]
    nodes: Int[ndarray, " tokens"]
    """The tree node that holds each token; trajectories of a group share nodes."""
    sampled: Bool[ndarray, " tokens"]
    """True on every token the policy sampled, also where it is too old to train."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards that the environment paid after each turn; empty where it only pays at the end."""
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts of the reward and what else the environment told of it, by name."""
    truncated: bool = False
    """True if a limit of ours ended it, and not the task."""
    entropies: Float[ndarray, " tokens"] | None = None
    """Entropies of the trainer's policy at batch start, in nats, on the mask; see `evidence`."""
    proximal: Float[ndarray, " tokens"] | None = None
    """Log-probs of the trainer's weights at batch start; None stands for the current ones."""
    reference: Float[ndarray, " tokens"] | None = None
    """Log-probs of the reference policy, which does not move."""
    values: Float[ndarray, " tokens"] | None = None
    """The critic's value of the context before each token of the mask."""
    final_value: float = 0.0
    """The critic's value of the whole context, where `truncated`."""
    returns: Float[ndarray, " tokens"] | None = None
    """Targets of the critic, to be compared with `values`."""
    weights: Float[ndarray, " tokens"] | None = None
    """Factor on the loss of each token; None is 1 for all. No count knows of it."""
    jumps: tuple[tuple[int, int], ...] = ()
    """Jumps as in `Trajectory`. With any the sample is no context; `contexts` returns its
    contexts."""
    images: tuple[ImageSpan, ...] = ()
    root: int | None = None
    """Index of the one of the group's first trajectories that it grew from, where it is known."""

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that can train."""
        return int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The trajectories of one task that have a reward; failed ones are not among them."""

    task_id: str
    samples: tuple[TrainingSample, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return the rewards in the order of the samples."""
        return tuple(sample.reward for sample in self.samples)


Trainable = Callable[[Trajectory], Sequence[bool]]
"""Says per token whether it may train now; never more than the policy sampled."""


def select_sampled(trajectory: Trajectory) -> tuple[bool, ...]:
    """Let every token train that the policy sampled."""
    return trajectory.mask


TurnWeights = Mapping[int, Mapping[int, float]]
"""Factors on the loss of a turn's tokens in one tree, by sample and turn, 1 by default."""


def groups_of(
    trees: Sequence[Tree],
    trainable: Trainable = select_sampled,
    weights: Sequence[TurnWeights] | None = None,
) -> tuple[TrainingGroup, ...]:
    """Return one group per tree that has a reward at all; `weights` are per tree.

    Failed trajectories are left out here, once: what follows never sees them, so they are in no
    baseline, no normaliser and no loss. Raises `LearnError` for a reward that is not finite.
    """
    tree_weights = [None] * len(trees) if weights is None else weights
    groups = (
        TrainingGroup(
            tree.task.id,
            tuple(s for t in tree.trajectories() if (s := sample_of(t, trainable, turns))),
        )
        for tree, turns in zip(trees, tree_weights, strict=True)
    )
    return tuple(group for group in groups if group.samples)


def sample_of(
    trajectory: Trajectory,
    trainable: Trainable = select_sampled,
    weights: TurnWeights | None = None,
) -> TrainingSample | None:
    """Return the trajectory as arrays, or None when it failed.

    What may not train is context for what may, and counts in the baseline all the same.
    """
    reward = reward_of(trajectory.outcome)
    if reward is None:
        return None
    name = f"task {trajectory.task.id!r} sample {trajectory.sample}"
    if not np.isfinite(reward):
        raise LearnError(
            f"{name}: its reward is {reward}, but a reward must be a finite number; fix the "
            "environment's reward, or raise an error there to fail the trajectory"
        )
    policy_mask = trajectory.mask
    mask = _to_array(policy_mask, bool)
    loss_mask = mask if trainable is select_sampled else _to_array(trainable(trajectory), bool)
    if (loss_mask & ~mask).any():
        raise LearnError(
            f"{name}: a token that was not sampled by the policy is selected for training"
        )
    if mask[:1].any():
        raise LearnError(
            f"{name}: its first token is sampled, but no token before it could predict it; start "
            "the context with a prompt of at least one token"
        )
    return TrainingSample(
        task_id=trajectory.task.id,
        sample=trajectory.sample,
        reward=float(reward),
        token_ids=_to_array(trajectory.token_ids, np.int64),
        mask=loss_mask,
        behaviour=_to_array(trajectory.logprobs, np.float64),
        versions=_to_array(trajectory.versions, np.int64),
        turns=_to_array(trajectory.turns, np.int64),
        nodes=_to_array(trajectory.nodes, np.int64),
        sampled=mask,
        turn_rewards=trajectory.turn_rewards,
        components=trajectory.components,
        truncated=isinstance(trajectory.outcome, Truncated),
        weights=None
        if weights is None
        else token_weights(policy_mask, trajectory.turns, weights.get(trajectory.sample, {})),
        jumps=trajectory.jumps,
        images=trajectory.images,
        root=trajectory.root,
    )


def token_weights(
    mask: Sequence[bool], turns: Sequence[int], weights: Mapping[int, float]
) -> Float[ndarray, " tokens"]:
    """Return the weight of each token: its turn's where the policy sampled it, else 0.

    It multiplies the loss of a token under the original mask, so that denominators stay as they
    are. A turn that `weights` does not name keeps its weight of 1.
    """
    each = np.asarray([weights.get(turn, 1.0) for turn in turns], dtype=np.float64)
    return np.where(np.asarray(mask, dtype=np.bool_), each, 0.0)


def _to_array(values: Sequence[Any], dtype: Any) -> ndarray:
    """Return values as an array, looking at each once, which `np.asarray` does not."""
    return np.fromiter(values, dtype, count=len(values))
