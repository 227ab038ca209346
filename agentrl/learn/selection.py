"""Selection: the rows of a batch that train, once their credit is known. Contract and methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.random import Generator

from agentrl.config.learning.selection import (
    BranchPruningSelection,
    D3sSelection,
    OverlongSelection,
    PivotSelection,
)
from agentrl.errors import LearnError
from agentrl.learn.advantage import read_advantages
from agentrl.learn.advantages.mc_grpo import lower_median
from agentrl.learn.method import LearnMethod, always, bind_knobs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.schedule import interpolate
from agentrl.learn.tree_shape import SharedPrefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionContext:
    """Point of the run at which a batch is selected from."""

    step: int
    """Training steps before this one."""
    steps: int
    """Training steps of the whole run; 0 where it is not known."""
    seed: int
    """Seed of this step's random choices."""


SelectionFunction = Callable[[Sequence[CreditedSample], SelectionContext], Sequence[CreditedSample]]
"""The selection slot: the rows of a batch, all groups in order, to those that train; rows of one
`group` belong together. A row may be left out, or come back with other `weights` or `advantages`,
or with fewer tokens in its mask; what it is divided by follows from the masks of the rows that are
returned."""


def read_selection(rows: Sequence[CreditedSample], returned: object) -> list[CreditedSample]:
    """Return the rows that a selection returned; where some have weights, the others have 1.

    Raises `LearnError` for what are no rows, for a mask with tokens that `rows` do not train, and
    for advantages or weights that are no finite number on it.
    """
    if not isinstance(returned, Iterable):
        raise LearnError(f"learn.selection returned {returned!r:.80}; return the rows that train")
    # What selects replaces samples and leaves their token ids as they are.
    masks = {id(row.sample.token_ids): row.sample.mask for row in rows}
    selected = [_read_row(row, masks) for row in cast("Iterable[object]", returned)]
    if all(row.sample.weights is None for row in selected):
        return selected
    return [
        row
        if row.sample.weights is not None
        else replace(row, sample=replace(row.sample, weights=np.ones(len(row.sample.mask))))
        for row in selected
    ]


def _read_row(row: object, masks: Mapping[int, Bool[ndarray, " tokens"]]) -> CreditedSample:
    if not isinstance(row, CreditedSample):
        raise LearnError(
            f"learn.selection returned a {type(row).__name__} among its rows; return the rows that "
            "it was given, or copies of them (dataclasses.replace)"
        )
    sample = row.sample
    name = f"learn.selection, task {sample.task_id!r} sample {sample.sample}"
    mask = np.asarray(sample.mask)
    before = masks.get(id(sample.token_ids), sample.sampled)
    if mask.dtype != np.bool_ or mask.shape != before.shape:
        raise LearnError(
            f"{name}: it returned a mask of {mask.dtype} of shape {mask.shape}; return a truth "
            f"value for each of {len(before)} tokens"
        )
    if (mask & ~before).any():
        raise LearnError(
            f"{name}: its mask has tokens that did not train before, such as those of the "
            "environment; leave tokens out, and add none"
        )
    if (weights := sample.weights) is not None:
        weights = read_advantages(sample, weights, slot="learn.selection", kind="weight")
        row = replace(row, sample=replace(sample, weights=weights))
    return replace(row, advantages=read_advantages(sample, row.advantages, slot="learn.selection"))


DIGITS = 9
"""Advantages that agree in so many decimal places are a tie, whatever their last bits say."""


def d3s(
    rows: Sequence[CreditedSample],
    moment: SelectionContext,
    *,
    samples: tuple[float, float] = (0.25, 1.0),
    tokens: tuple[float, float] = (0.2, 1.0),
) -> list[CreditedSample]:
    """Return the rows that train, their masks cut down to the tokens that do.

    `samples` and `tokens` are the shares that are kept, at the first step and after the last one;
    they change evenly between. Advantages stay as they are: nothing is normalised again. Rows of
    which no token is left are left out. Ties are broken by `moment.seed`.
    Source: arXiv 2509.22115 as reviews and summaries report it; the end points of its schedule are
    not known, and those of the config are our own.
    """
    ties = np.random.default_rng(moment.seed)
    there = [row for row in rows if row.sample.sampled_tokens]
    count = min(len(there), max(2, round_half_up(_interpolate_share(samples, moment) * len(there))))
    credit = np.array([_credit_of_row(row) for row in there])
    selection = [there[i] for i in furthest_apart(credit, count, ties=ties)]
    return _cut(selection, _interpolate_share(tokens, moment), ties)


def furthest_apart(
    values: Float[ndarray, " rows"], count: int, *, ties: Generator
) -> Int[ndarray, " chosen"]:
    """Return the indices of the `count` values with the greatest variance, in their order.

    Those are the smallest so many and the largest so many; every split is tried. Of splits that are
    equally good, the one with the most large values is taken.
    """
    order = np.lexsort((ties.permutation(len(values)), np.round(values, DIGITS)))
    ordered = values[order] - (values.mean() if len(values) else 0.0)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    squares = np.concatenate([[0.0], np.cumsum(ordered**2)])
    low = np.arange(count + 1)
    high = len(values) - (count - low)
    size = max(count, 1)
    mean = (sums[low] + sums[-1] - sums[high]) / size
    variance = (squares[low] + squares[-1] - squares[high]) / size - mean**2
    best = int(np.argmax(np.round(variance, DIGITS)))
    return np.sort(np.concatenate([order[:best], order[high[best] :]]))


def most_credit(
    scores: Float[ndarray, " tokens"], share: float, *, ties: Generator
) -> Bool[ndarray, " tokens"]:
    """Return the mask of the top `share` of all tokens by score, at least one."""
    count = min(len(scores), max(1, round_half_up(share * len(scores))))
    mask = np.zeros(len(scores), dtype=bool)
    mask[np.lexsort((ties.permutation(len(scores)), -scores))[:count]] = True
    return mask


def round_half_up(count: float) -> int:
    """Return the nearest whole number, the greater one of two."""
    return int(np.floor(count + 0.5))


def _cut(rows: Sequence[CreditedSample], share: float, ties: Generator) -> list[CreditedSample]:
    # The ranks are those of all tokens that are left, so no micro-batch can change them.
    scores = [_scores(row) for row in rows]
    keep_mask = most_credit(np.concatenate([*scores, np.empty(0)]), share, ties=ties)
    results: list[CreditedSample] = []
    at = 0
    for row, row_scores in zip(rows, scores, strict=True):
        mask = row.sample.mask.copy()
        mask[row.sample.mask] = keep_mask[at : at + len(row_scores)]
        at += len(row_scores)
        if mask.any():
            results.append(replace(row, sample=replace(row.sample, mask=mask)))
    return results


def _credit_of_row(row: CreditedSample) -> float:
    """Return the mean advantage of the tokens that train: the advantage, if it is one for all."""
    return float(row.advantages[row.sample.mask].mean())


def _scores(row: CreditedSample) -> Float[ndarray, " trained"]:
    """Return |advantage x weight| x entropy of every token of the mask."""
    sample = row.sample
    if sample.entropies is None:
        raise ValueError(
            f"task {sample.task_id!r} sample {sample.sample} has no entropies; a selection that "
            'wraps this one must declare that it needs them: @needs("entropies")'
        )
    credit = np.abs(row.advantages[sample.mask])
    if sample.weights is not None:
        credit = credit * np.abs(sample.weights[sample.mask])
    return credit * sample.entropies[sample.mask]


def _interpolate_share(ends: tuple[float, float], moment: SelectionContext) -> float:
    return interpolate(*ends, shape="linear", step=moment.step, steps=moment.steps)


def overlong(rows: Sequence[CreditedSample], moment: SelectionContext) -> list[CreditedSample]:
    """Return the rows that were not truncated.

    The others stay in the baseline of their group, which is behind them, and are in no denominator.
    Source: Yu et al. 2025 (arXiv 2503.14476), overlong filtering.
    """
    return keep_or_skip([row for row in rows if not row.sample.truncated], rows)


def pivot(rows: Sequence[CreditedSample], moment: SelectionContext) -> list[CreditedSample]:
    """Return the rows without the pivot of each group: the first one whose reward is the median.

    It is the baseline of `mc_grpo`, which gives it no credit; others with the same reward stay. A
    group of one is its own pivot. Source: MC-GRPO, arXiv 2601.22582.
    """
    results: list[CreditedSample] = []
    for group_rows in split_groups(rows):
        rewards = [row.sample.reward for row in group_rows]
        middle = rewards.index(lower_median(rewards))
        results += [row for at, row in enumerate(group_rows) if at != middle]
    return keep_or_skip(results, rows)


def branch_pruning(
    rows: Sequence[CreditedSample],
    moment: SelectionContext,
    *,
    width: Literal["all", "half", "extremes"] = "half",
    depths: tuple[int, ...] = (),
    slide_steps: int = 30,
) -> list[CreditedSample]:
    """Return the rows, their masks without the segments that are pruned. Advantages stay.

    Rewards decide which leaf segments are the better ones, and `moment.seed` where they are equal.
    A segment before the last branch point is trained by every row that holds it, whatever became of
    what comes after. Source: Li et al. 2025 (BranchGRPO, arXiv 2509.06040), for trees of diffusion
    steps; depth in branch points is ours.
    """
    ties = np.random.default_rng(moment.seed)
    results: list[CreditedSample] = []
    for group_rows in split_groups(rows):
        samples = tuple(row.sample for row in group_rows)
        group = TrainingGroup(samples[0].task_id, samples)
        shape = SharedPrefixes.from_group(group)
        keep = ~find_pruned_depths(shape, depths, shift=moment.step // slide_steps)
        if width != "all":
            keep &= ~find_pruned_leaves(shape, group.rewards, width=width, ties=ties)
        for row, places in zip(group_rows, shape.places, strict=True):
            mask = row.sample.mask & keep[places]
            if mask.any():
                results.append(replace(row, sample=replace(row.sample, mask=mask)))
    return keep_or_skip(results, rows)


def find_pruned_depths(
    shape: SharedPrefixes, depths: Sequence[int], *, shift: int
) -> Bool[ndarray, " segments"]:
    """Return the mask of the segments at `depths`, which are `shift` deeper by now, but no deeper
    than before the last branch point."""
    segment_depths = np.array([segment.depth for segment in shape.segments])
    last = int(segment_depths.max(initial=0)) - 1
    slide = min(shift, max(0, last - max(depths, default=0)))
    return np.isin(segment_depths, [depth + slide for depth in depths]) & (segment_depths <= last)


def find_pruned_leaves(
    shape: SharedPrefixes,
    rewards: Sequence[float],
    *,
    width: Literal["half", "extremes"],
    ties: Generator,
) -> Bool[ndarray, " segments"]:
    """Return the mask of the segments without a branch point after them that do not train.

    `half` keeps the better half of the leaves after each branch point, rounded up, `extremes` the
    best and the worst leaf of all.
    """
    parents = {segment.parent for segment in shape.segments}
    leaves = [at for at in range(len(shape.segments)) if at not in parents]
    values = shape.means(rewards)
    # From worst to best.
    order = np.lexsort((ties.permutation(len(leaves)), np.round(values[leaves], DIGITS)))
    ranked = [leaves[at] for at in order]
    if width == "extremes":
        pruned = ranked[1:-1]
    else:
        pruned: list[int] = []
        for parent in dict.fromkeys(shape.segments[leaf].parent for leaf in leaves):
            siblings = [leaf for leaf in ranked if shape.segments[leaf].parent == parent]
            pruned += siblings[: len(siblings) // 2]
    mask = np.zeros(len(shape.segments), dtype=bool)
    mask[pruned] = True
    return mask


def split_groups(rows: Sequence[CreditedSample]) -> list[list[CreditedSample]]:
    """Return the rows of each group."""
    groups: dict[int, list[CreditedSample]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.values())


def keep_or_skip(
    chosen_rows: list[CreditedSample], rows: Sequence[CreditedSample]
) -> list[CreditedSample]:
    """Return the rows that were kept; if none of them can train, all `rows` without credit, so that
    the step leaves the weights alone."""
    if any(row.sample.sampled_tokens for row in chosen_rows):
        return chosen_rows
    return [replace(row, advantages=np.zeros_like(row.advantages)) for row in rows]


METHODS: tuple[LearnMethod[SelectionFunction], ...] = (
    LearnMethod(
        D3sSelection,
        bind_knobs(d3s),
        "arXiv 2509.22115, as reported by others",
        always("entropies"),
    ),
    LearnMethod(OverlongSelection, bind_knobs(overlong), "Yu et al. 2025, arXiv 2503.14476"),
    LearnMethod(PivotSelection, bind_knobs(pivot), "arXiv 2601.22582"),
    LearnMethod(
        BranchPruningSelection, bind_knobs(branch_pruning), "Li et al. 2025, arXiv 2509.06040"
    ),
)
