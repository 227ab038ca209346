"""Step 7 of the flow: what each trajectory did better than its group. The slot's contract."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, cast

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.section import ConfigSection
from agentrl.errors import LearnError
from agentrl.learn.method import knobs_of
from agentrl.learn.sample import TrainingGroup, TrainingSample

TokenAdvantages = list[Float[ndarray, " tokens"]]
"""One array per sample, in the order of the groups and of the samples within them."""

AdvantageFunction = Callable[[Sequence[TrainingGroup]], TokenAdvantages]
"""The advantage slot: credit of every token of every sample of a batch. A whole batch goes in
because some methods normalise over it; values off the mask are never read."""


def read_credit(samples: Sequence[TrainingSample], returned: object) -> TokenAdvantages:
    """Return credit as float64; raise `LearnError` unless there is a finite number for each token
    that trains."""
    if isinstance(returned, str | Mapping) or not isinstance(returned, Iterable):
        raise LearnError(
            f"learn.advantage returned {returned!r:.80}; return an array for each trajectory"
        )
    credit = list(cast("Iterable[object]", returned))
    if len(credit) != len(samples):
        raise LearnError(
            f"learn.advantage returned {len(credit)} arrays for {len(samples)} trajectories; "
            "return one for each, in their order"
        )
    return [
        read_advantages(sample, values, slot="learn.advantage")
        for sample, values in zip(samples, credit, strict=True)
    ]


def read_advantages(
    sample: TrainingSample,
    returned: object,
    *,
    slot: str,
    kind: Literal["advantage", "weight"] = "advantage",
) -> Float[ndarray, " tokens"]:
    """Return a sample's advantages, or weights, which a method of `slot` returned, as float64."""
    name = f"{slot}, task {sample.task_id!r} sample {sample.sample}"
    try:
        values = np.asarray(returned)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LearnError(
            f"{name}: it returned a {type(returned).__name__}, of which no array can be made "
            f"({error}); return {kind}s as a NumPy array"
        ) from error
    if values.shape != sample.mask.shape:
        raise LearnError(
            f"{name}: it returned an array of shape {values.shape} for "
            f"{len(sample.mask)} tokens; return a value per token of the context"
        )
    if values.dtype.kind not in "iuf":
        raise LearnError(
            f"{name}: it returned an array of {values.dtype}, which holds no numbers; return "
            f"{kind}s as float64"
        )
    if not np.isfinite(values[sample.mask]).all():
        raise LearnError(
            f"{name}: the {kind} of a token that trains is no finite number; fix the method"
        )
    return values.astype(np.float64, copy=False)


def spread_over_tokens(group: TrainingGroup, credit: Sequence[float]) -> TokenAdvantages:
    """Return one value per sample at each of its tokens, which is in memory once."""
    return [
        np.broadcast_to(np.float64(value), len(sample.token_ids))
        for sample, value in zip(group.samples, credit, strict=True)
    ]


def per_trajectory(credit: Callable[[Sequence[float]], Sequence[float]]) -> AdvantageFunction:
    """Return the slot function of a method that gives every token of a trajectory one value.

    `credit` turns the rewards of a group into one number each.
    """

    def advantages(groups: Sequence[TrainingGroup]) -> TokenAdvantages:
        return [x for group in groups for x in spread_over_tokens(group, credit(group.rewards))]

    return advantages


def bind_per_trajectory(
    credit: Callable[..., Sequence[float]],
) -> Callable[[ConfigSection], AdvantageFunction]:
    """Return the binding of such a method, whose keywords are the knobs of its section."""
    return lambda section: per_trajectory(partial(credit, **knobs_of(section)))
