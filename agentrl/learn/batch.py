"""Step 6 of the flow: trees become samples, and samples become padded micro-batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from agentrl.errors import ConfigError, LearnError
from agentrl.rollout.curation.steps import token_weights
from agentrl.trajectory import Trajectory, Tree, reward_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
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
    weights: Float[ndarray, " tokens"] | None = None
    """What multiplies the loss of each token; None is 1 for all. No count knows of it."""

    @property
    def sampled_tokens(self) -> int:
        """Return how many tokens can train."""
        return int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task that have a reward; failed ones are not among them."""

    task_id: str
    samples: tuple[Sample, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return the rewards in the order of the samples."""
        return tuple(sample.reward for sample in self.samples)


Trainable = Callable[[Trajectory], Sequence[bool]]
"""Says per token whether it may train now; never more than the policy sampled."""


def sampled(trajectory: Trajectory) -> tuple[bool, ...]:
    """Let every token train that the policy sampled."""
    return trajectory.mask


TurnWeights = Mapping[int, Mapping[int, float]]
"""Of one tree, by sample and turn: what multiplies the loss of a turn's tokens, 1 by default."""


def groups_of(
    trees: Sequence[Tree],
    trainable: Trainable = sampled,
    weights: Sequence[TurnWeights] | None = None,
) -> tuple[Group, ...]:
    """Return one group per tree that has a reward at all; `weights` are per tree.

    Failed trajectories are left out here, once: what follows never sees them, so they are in no
    baseline, no normaliser and no loss. Raises `LearnError` for a reward that is not finite.
    """
    given = [None] * len(trees) if weights is None else weights
    groups = (
        Group(
            tree.task.id,
            tuple(s for t in tree.trajectories() if (s := sample_of(t, trainable, turns))),
        )
        for tree, turns in zip(trees, given, strict=True)
    )
    return tuple(group for group in groups if group.samples)


def sample_of(
    trajectory: Trajectory, trainable: Trainable = sampled, weights: TurnWeights | None = None
) -> Sample | None:
    """Return the trajectory as arrays, or None when it failed.

    What may not train is context for what may, and counts in the baseline all the same.
    """
    reward = reward_of(trajectory.outcome)
    if reward is None:
        return None
    name = f"task {trajectory.task.id!r} sample {trajectory.sample}"
    if not np.isfinite(reward):
        raise LearnError(
            f"{name}: its reward is {reward}, and a reward must be a finite number; "
            "mend the environment's reward, or raise an error there to fail the trajectory"
        )
    mask = np.asarray(trajectory.mask, dtype=bool)
    chosen = np.asarray(trainable(trajectory), dtype=bool)
    if (chosen & ~mask).any():
        raise LearnError(f"{name}: a token that the policy did not sample was chosen to train")
    if mask[:1].any():
        raise LearnError(
            f"{name}: its first token is sampled, and nothing comes before it that could predict "
            "it; a context starts with a prompt of at least one token"
        )
    return Sample(
        task_id=trajectory.task.id,
        sample=trajectory.sample,
        reward=float(reward),
        token_ids=np.asarray(trajectory.token_ids, dtype=np.int64),
        mask=chosen,
        behaviour=np.asarray(trajectory.logprobs, dtype=np.float64),
        versions=np.asarray(trajectory.versions, dtype=np.int64),
        turns=np.asarray(trajectory.turns, dtype=np.int64),
        weights=None
        if weights is None
        else token_weights(trajectory.mask, trajectory.turns, weights.get(trajectory.sample, {})),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A sample with the credit of its tokens, ready to train."""

    sample: Sample
    advantages: Float[ndarray, " tokens"]
    proximal: Float[ndarray, " tokens"] | None = None
    """Log-probs of the trainer's weights at batch start; None stands for the current ones."""

    @property
    def is_idle(self) -> bool:
        """True when no token has an advantage and a weight: loss and gradient are zero too."""
        weights = self.sample.weights
        credit = self.advantages if weights is None else self.advantages * weights
        return not credit[self.sample.mask].any()

    @property
    def forward_tokens(self) -> int:
        """Return how many tokens a forward pass needs: all before the last sampled one."""
        return forward_tokens(self.sample.mask)


def forward_tokens(mask: Sequence[bool] | Bool[ndarray, " tokens"]) -> int:
    """Return the index of the last True, which is predicted from the tokens before it."""
    chosen = np.flatnonzero(mask)
    return int(chosen[-1]) if len(chosen) else 0


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Sequences side by side, shifted by one and padded on the right: position t of `inputs`
    predicts position t of `targets`, and `mask` says which predictions count."""

    inputs: Int[Tensor, "rows width"]
    targets: Int[Tensor, "rows width"]
    mask: Bool[Tensor, "rows width"]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """What one forward and backward pass works on. Floats are 0 off the mask."""

    tokens: Tokens
    advantages: Float[Tensor, "rows width"]
    behaviour: Float[Tensor, "rows width"]
    proximal: Float[Tensor, "rows width"] | None
    weights: Float[Tensor, "rows width"] | None = None
    """What multiplies the loss of each token; None is 1 for all."""

    @property
    def mask(self) -> Bool[Tensor, "rows width"]:
        """Return which predictions are of sampled tokens."""
        return self.tokens.mask


PADDING_TOKENS = 256
"""About what the fixed cost of one more forward and backward pass is worth on a CPU."""


def plan(widths: Sequence[int], *, limit_tokens: int) -> list[list[int]]:
    """Return which sequences go together so that rows x widest is at most `limit_tokens`.

    Longest first, and a new micro-batch begins where padding would cost more than another pass:
    more than `PADDING_TOKENS` and more than an eighth of what the micro-batch holds.
    """
    batches: list[list[int]] = []
    widest = held = 0
    for index in sorted(range(len(widths)), key=lambda i: (-widths[i], i)):
        if widths[index] > limit_tokens:
            raise ConfigError(
                f"a sequence needs {widths[index]} tokens in one forward pass, and "
                f"micro_batch_tokens={limit_tokens} allows fewer; "
                f"set it to at least {widths[index]}"
            )
        padded = widest * (len(batches[-1]) + 1) if batches else 0
        padding = padded - held - widths[index]
        if not batches or padded > limit_tokens or padding > max(PADDING_TOKENS, held // 8):
            batches.append([])
            widest, held = widths[index], 0
        batches[-1].append(index)
        held += widths[index]
    return batches


def tokens_of(
    sequences: Sequence[tuple[Int[ndarray, " _"], Bool[ndarray, " _"]]],
    *,
    device: torch.device,
) -> Tokens:
    """Return (token ids, mask) pairs as one padded block; what comes after the last True of a mask
    is cut off, because nothing that counts depends on it."""
    widths = [forward_tokens(mask) for _, mask in sequences]
    inputs = [ids[:width] for (ids, _), width in zip(sequences, widths, strict=True)]
    targets = [ids[1 : width + 1] for (ids, _), width in zip(sequences, widths, strict=True)]
    masks = [mask[1 : width + 1] for (_, mask), width in zip(sequences, widths, strict=True)]
    return Tokens(
        inputs=torch.from_numpy(pad(inputs)).to(device),
        targets=torch.from_numpy(pad(targets)).to(device),
        mask=torch.from_numpy(pad(masks)).to(device),
    )


def pad(rows: Sequence[ndarray]) -> ndarray:
    """Return the rows as one array, filled with zeros on the right."""
    block = np.zeros((len(rows), max(len(row) for row in rows)), dtype=rows[0].dtype)
    for row, values in zip(block, rows, strict=True):
        row[: len(values)] = values
    return block


def micro_batch(rows: Sequence[Row], *, device: torch.device) -> MicroBatch:
    """Return rows as one padded block. Either all of them have proximal log-probs or none has, and
    either all of them have weights or none has."""
    tokens = tokens_of([(row.sample.token_ids, row.sample.mask) for row in rows], device=device)

    def aligned(values: Sequence[Float[ndarray, " _"]]) -> Float[Tensor, "rows width"]:
        cut = [x[1 : row.forward_tokens + 1] for row, x in zip(rows, values, strict=True)]
        block = torch.from_numpy(pad(cut)).to(device=device, dtype=torch.float32)
        return torch.where(tokens.mask, block, 0.0)

    proximal = [row.proximal for row in rows if row.proximal is not None]
    weights = [row.sample.weights for row in rows if row.sample.weights is not None]
    return MicroBatch(
        tokens=tokens,
        advantages=aligned([row.advantages for row in rows]),
        behaviour=aligned([row.sample.behaviour for row in rows]),
        proximal=aligned(proximal) if proximal else None,
        weights=aligned(weights) if weights else None,
    )


def micro_batches(
    rows: Sequence[Row], *, limit_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Return the rows as micro-batches of at most `limit_tokens` padded tokens each."""
    chosen = plan([row.forward_tokens for row in rows], limit_tokens=limit_tokens)
    return [micro_batch([rows[i] for i in indices], device=device) for indices in chosen]
