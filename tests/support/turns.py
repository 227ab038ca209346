"""Samples of several turns, written down as what happened in each."""

from collections.abc import Sequence

import numpy as np

from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of

Turn = tuple[Sequence[int], Sequence[int], float]
"""What it answers, what the policy samples, and what it is paid."""


def played(
    *turns: Turn,
    sample: int = 0,
    reward: float | None = None,
    stale: Sequence[int] = (),
    truncated: bool = False,
    final_value: float = 0.0,
    values: Sequence[float] | None = None,
    behaviour: Sequence[float] | None = None,
    proximal: Sequence[float] | None = None,
) -> TrainingSample:
    """Return the sample of these turns; `values` and so on are those of its sampled tokens.

    With `reward` the environment only pays at the end. Turns in `stale` are too old to train.
    """
    tokens: list[int] = []
    sampled: list[bool] = []
    at: list[int] = []
    for turn, (answered, said, _) in enumerate(turns):
        tokens += [*answered, *said]
        sampled += [False] * len(answered) + [True] * len(said)
        at += [turn] * (len(answered) + len(said))
    mask = np.asarray(sampled, dtype=bool)
    old = np.isin(at, stale)

    def placed(given: Sequence[float] | None) -> np.ndarray | None:
        if given is None:
            return None
        found = np.full(len(tokens), np.nan)
        found[mask] = given
        return found

    paid = tuple(float(pay) for _, _, pay in turns)
    return TrainingSample(
        task_id="t",
        sample=sample,
        reward=sum(paid) if reward is None else reward,
        token_ids=np.asarray(tokens, dtype=np.int64),
        mask=mask & ~old,
        behaviour=np.full(len(tokens), -1.0) if behaviour is None else _given(placed(behaviour)),
        spans=spans_of(mask, turns=np.asarray(at), nodes=np.arange(len(tokens))),
        turn_rewards=paid if reward is None else (),
        truncated=truncated,
        values=placed(values),
        final_value=final_value,
        proximal=placed(proximal),
    )


def group(*samples: TrainingSample) -> list[TrainingGroup]:
    """Return a batch of one group."""
    return [TrainingGroup("t", samples)]


def on_mask(sample: TrainingSample, credit: np.ndarray) -> list[float]:
    """Return the credit of the tokens that train."""
    return credit[sample.mask].tolist()


def _given(found: np.ndarray | None) -> np.ndarray:
    assert found is not None
    return found
