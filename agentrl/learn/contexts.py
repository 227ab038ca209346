"""The contexts of a sample: one for each end that nothing goes on from.

Credit is given to a whole trajectory, in the order things were said. A forward pass reads contexts:
a turn that a patch replaced is in no context but its own, and conversations that took turns are a
context each, however often they were left and taken up again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingSample, spans_of
from agentrl.message import ImageSpan
from agentrl.trajectory import context_runs

_ARRAYS = (
    *("token_ids", "behaviour", "entropies", "proximal", "reference", "values", "returns"),
    "weights",
)
"""Fields of a sample with a number per token."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleContext:
    """One context of a sample."""

    sample: TrainingSample
    """The context as a sample; its mask has the tokens that train in it and in no other."""
    places: Int[ndarray, " _"]
    """Positions of its tokens in the sample."""


def contexts(sample: TrainingSample, *, with_end: bool = False) -> tuple[SampleContext, ...]:
    """Return the contexts whose masks add up to the sample's, those that train nothing left out,
    but not the one at the end if `with_end`.

    The first is the one at the end; the sample itself, where there is no other. What several hold
    trains in the last of them.
    """
    count = len(sample.token_ids)
    if not sample.jumps:
        return (SampleContext(sample, np.arange(count)),)
    followed = {before for _, before in sample.jumps}
    ends = [count - 1, *(start - 1 for start, _ in reversed(sample.jumps))]
    sample_contexts: list[SampleContext] = []
    is_free = np.ones(count, dtype=bool)
    for end in ends:
        if end in followed:
            continue
        runs = context_runs(sample.jumps, end)
        places = np.concatenate([np.arange(start, stop) for start, stop in runs])
        whole = sample if not sample_contexts else replace(sample, truncated=False)
        sample_contexts.append(_context(whole, places, is_free[places]))
        is_free[places] = False
    first, *others = sample_contexts
    trained = tuple(one for one in reversed(others) if one.sample.mask.any())
    keeps_first = with_end or first.sample.mask.any() or not trained
    return (first, *trained) if keeps_first else trained


def rows_of(row: CreditedSample) -> list[CreditedSample]:
    """Return a credited sample as one row per context."""
    if not row.sample.jumps:
        return [row]
    count = max(row.sample.sampled_tokens, 1)
    return [
        replace(
            row,
            sample=one.sample,
            advantages=row.advantages[one.places],
            share=one.sample.sampled_tokens / count,
        )
        for one in contexts(row.sample)
    ]


def score_by_context(
    samples: Sequence[TrainingSample],
    score: Callable[[Sequence[TrainingSample]], Sequence[TrainingSample]],
) -> list[TrainingSample]:
    """Return the samples with what `score` finds when it is given their contexts instead.

    The context at the end of a truncated sample is among them even if it trains nothing.
    """
    parts = [contexts(sample, with_end=sample.truncated) for sample in samples]
    scored = iter(score([one.sample for sample_contexts in parts for one in sample_contexts]))
    return [
        _join_contexts(sample, [replace(one, sample=next(scored)) for one in sample_contexts])
        for sample, sample_contexts in zip(samples, parts, strict=True)
    ]


def _join_contexts(sample: TrainingSample, scored: Sequence[SampleContext]) -> TrainingSample:
    if not sample.jumps:
        return scored[0].sample
    values = {
        name: _place_values(sample, [(one, getattr(one.sample, name)) for one in scored])
        for name in ("proximal", "reference", "entropies", "values")
    }
    return replace(sample, **values, final_value=scored[0].sample.final_value)


def _context(sample: TrainingSample, places: Int[ndarray, " _"], trains: ndarray) -> SampleContext:
    arrays = {name: getattr(sample, name) for name in _ARRAYS}
    cut = replace(
        sample,
        **{name: None if array is None else array[places] for name, array in arrays.items()},
        mask=sample.mask[places] & trains,
        spans=spans_of(
            sample.sampled[places],
            nodes=sample.nodes[places],
            turns=sample.turns[places],
            versions=sample.versions[places],
        ),
        jumps=(),
        images=tuple(_images(sample, places)),
    )
    return SampleContext(cut, places)


def _images(sample: TrainingSample, places: Int[ndarray, " _"]) -> Iterator[ImageSpan]:
    """Yield the images of the chosen tokens; a context has all of an image's tokens or none."""
    for image in sample.images:
        at = int(np.searchsorted(places, image.start))
        if at < len(places) and places[at] == image.start:
            yield image.moved(at - image.start)


def _place_values(
    sample: TrainingSample, parts: Sequence[tuple[SampleContext, ndarray | None]]
) -> ndarray | None:
    if all(values is None for _, values in parts):
        return None
    whole = np.zeros(len(sample.token_ids))
    for context, values in parts:
        if values is not None:
            mask = context.sample.mask
            whole[context.places[mask]] = values[mask]
    whole.flags.writeable = False
    return whole
