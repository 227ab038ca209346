"""Step 6 of the flow: trees become samples, grouped by task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray

from agentrl.errors import LearnError
from agentrl.message import ImageSpan
from agentrl.trajectory import Leaf, Tree, Truncated, reward_of

TOKEN_SPAN: Final = np.dtype(
    [
        ("tokens", np.int32),
        ("node", np.int32),
        ("turn", np.int32),
        ("version", np.int32),
        ("sampled", np.bool_),
    ]
)
"""Consecutive tokens of a context: how many, and what is the same for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One trajectory that has a reward. Arrays are per token of the whole context.

    Nobody may write into them: all ranks of a machine read the same. What a whole span of tokens
    has in common is stored once, and an array per token is made of it when it is asked for.
    """

    task_id: str
    sample: int
    reward: float
    token_ids: Int[ndarray, " tokens"]
    mask: Bool[ndarray, " tokens"]
    """True on the tokens that train: those the policy sampled, unless they are too old."""
    behaviour: Float[ndarray, " tokens"]
    """The engine's log-prob of each sampled token; what it holds elsewhere is never read."""
    spans: Shaped[ndarray, " spans"]
    """The context's spans in order, of `TOKEN_SPAN`; see `spans_of`."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards that the environment paid after each turn; empty where it only pays at the end."""
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts of the reward and what else the environment told of it, by name."""
    answer: str | None = None
    """Final answer that the environment reported; None where it reported none."""
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
    baseline: float | None = None
    """Prediction of its reward from the group's other trajectories; see `ValueProbe`."""
    weights: Float[ndarray, " tokens"] | None = None
    """Factor on the loss of each token; None is 1 for all. No count knows of it."""
    jumps: tuple[tuple[int, int], ...] = ()
    """Jumps as in `Trajectory`. With any the sample is no context; `contexts` returns its
    contexts."""
    images: tuple[ImageSpan, ...] = ()
    other_prompt: bool = False
    """True where it trains after another prompt than it was sampled after: its log-probs are not
    the engine's."""
    hint_coefficient: float = 0.0
    """Weight of a second loss, after the prompt without a hint; see `hint`."""
    root: int | None = None
    """Index of the one of the group's first trajectories that it grew from, where it is known."""

    @property
    def nodes(self) -> Int[ndarray, " tokens"]:
        """Return the tree node that holds each token; trajectories of a group share nodes."""
        return self._spread("node")

    @property
    def turns(self) -> Int[ndarray, " tokens"]:
        """Return the turn of each token."""
        return self._spread("turn")

    @property
    def versions(self) -> Int[ndarray, " tokens"]:
        """Return the version of the weights that sampled each token, -1 where none did."""
        return self._spread("version")

    @property
    def sampled(self) -> Bool[ndarray, " tokens"]:
        """Return True on every token the policy sampled, also where it is too old to train."""
        return self._spread("sampled")

    def _spread(self, name: str) -> Shaped[ndarray, " tokens"]:
        return np.repeat(self.spans[name], self.spans["tokens"])

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that can train."""
        return int(np.count_nonzero(self.mask))


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The trajectories of one task that have a reward; failed ones are not among them."""

    task_id: str
    samples: tuple[TrainingSample, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return the rewards in the order of the samples."""
        return tuple(sample.reward for sample in self.samples)


def spans_of(
    sampled: Bool[ndarray, " tokens"],
    *,
    nodes: Int[ndarray, " tokens"] | int = 0,
    turns: Int[ndarray, " tokens"] | int = 0,
    versions: Int[ndarray, " tokens"] | int = 0,
) -> Shaped[ndarray, " spans"]:
    """Return the spans of a context whose tokens are described one by one, or all alike."""
    tokens = np.zeros(len(sampled), TOKEN_SPAN)
    tokens["sampled"], tokens["node"] = sampled, nodes
    tokens["turn"], tokens["version"] = turns, versions
    starts = np.flatnonzero(np.append(tokens[:1] == tokens[:1], tokens[1:] != tokens[:-1]))
    spans = tokens[starts]
    spans["tokens"] = np.diff(np.append(starts, len(tokens)))
    return _freeze(spans)


def entropies_of(sample: TrainingSample) -> Float[ndarray, " tokens"]:
    """Return a sample's entropies; raise `ValueError` where nothing asked for them."""
    if sample.entropies is None:
        raise ValueError(
            f"task {sample.task_id!r} sample {sample.sample} has no entropies; a method that wraps "
            'this one must declare that it needs them: @needs("entropies")'
        )
    return sample.entropies


Trainable = Callable[[Int[ndarray, " spans"]], Bool[ndarray, " spans"]]
"""Says of spans of tokens, by the version that sampled each (-1 for none), which may train now;
never one that the policy did not sample."""


TurnWeights = Mapping[int, Mapping[int, float]]
"""Factors on the loss of a turn's tokens in one tree, by sample and turn, 1 by default."""


def groups_of(
    trees: Sequence[Tree],
    trainable: Trainable | None = None,
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
            tuple(
                sample
                for leaf in sorted(tree.leaves, key=lambda leaf: leaf.sample)
                if (sample := sample_of(tree, leaf, trainable, turns))
            ),
        )
        for tree, turns in zip(trees, tree_weights, strict=True)
    )
    return tuple(group for group in groups if group.samples)


def sample_of(
    tree: Tree,
    leaf: Leaf,
    trainable: Trainable | None = None,
    weights: TurnWeights | None = None,
) -> TrainingSample | None:
    """Return the trajectory that ended at a leaf as arrays, or None when it failed.

    Without `trainable` every token may train that the policy sampled. What may not is context for
    what may, and counts in the baseline all the same.
    """
    reward = reward_of(leaf.outcome)
    if reward is None or leaf.node is None:
        return None
    name = f"task {tree.task.id!r} sample {leaf.sample}"
    if not np.isfinite(reward):
        raise LearnError(
            f"{name}: its reward is {reward}, but a reward must be a finite number; fix the "
            "environment's reward, or raise an error there to fail the trajectory"
        )
    token_ids, logprobs, spans = _join_path(tree, leaf.node)
    trains = spans["sampled"] if trainable is None else trainable(spans["version"])
    if (trains & ~spans["sampled"]).any():
        raise LearnError(
            f"{name}: a token that was not sampled by the policy is selected for training"
        )
    if spans["sampled"][:1].any():
        raise LearnError(
            f"{name}: its first token is sampled, but no token before it could predict it; start "
            "the context with a prompt of at least one token"
        )
    return TrainingSample(
        task_id=tree.task.id,
        sample=leaf.sample,
        reward=float(reward),
        token_ids=token_ids,
        mask=_freeze(np.repeat(trains, spans["tokens"])),
        behaviour=logprobs,
        spans=spans,
        turn_rewards=leaf.turn_rewards,
        components=leaf.components,
        answer=leaf.answer,
        truncated=isinstance(leaf.outcome, Truncated),
        weights=None
        if weights is None
        else _freeze(token_weights(spans, weights.get(leaf.sample, {}))),
        jumps=tree.jumps(leaf.node),
        images=tree.path_images(leaf.node),
        root=leaf.root,
    )


def _join_path(
    tree: Tree, node: int
) -> tuple[Int[ndarray, " tokens"], Float[ndarray, " tokens"], Shaped[ndarray, " spans"]]:
    """Return the tokens from the root to a node: their ids, their log-probs, and their spans."""
    ids = tree.path_ids(node)
    path = [(id, tree.node(id), tree.packed(id)) for id in ids]
    spans = [
        (count, id, part.turn, version, part.source == "sampled")
        for id, part, packed in path
        for version, count in packed.versions
    ]
    # Bytes that are joined are copied once; a context has tens of thousands of tokens.
    token_ids = b"".join([packed.token_ids for _, _, packed in path])
    logprobs = b"".join([packed.logprobs or bytes(len(packed.token_ids)) for _, _, packed in path])
    return (
        np.frombuffer(token_ids, np.int32),
        np.frombuffer(logprobs, np.float32),
        _freeze(np.array(spans, TOKEN_SPAN)),
    )


def _freeze(array: ndarray) -> ndarray:
    array.flags.writeable = False
    return array


def token_weights(
    spans: Shaped[ndarray, " spans"], weights: Mapping[int, float]
) -> Float[ndarray, " tokens"]:
    """Return the weight of each token: its turn's where the policy sampled it, else 0.

    It multiplies the loss of a token under the original mask, so that denominators stay as they
    are. A turn that `weights` does not name keeps its weight of 1.
    """
    turns, sampled = spans["turn"].tolist(), spans["sampled"].tolist()
    span_weights = [
        weights.get(turn, 1.0) if is_sampled else 0.0
        for turn, is_sampled in zip(turns, sampled, strict=True)
    ]
    return np.repeat(np.array(span_weights, dtype=np.float64), spans["tokens"])
