"""Record of a training step's effect on each token, collected while it trains. It changes nothing.

One look per micro-batch at what the loss has computed anyway. The last look at a token counts: with
several epochs that is the policy nearest to the new weights.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from agentrl.learn.batch import TrainingBatch
from agentrl.learn.micro_batch import CreditedSample, unshift
from agentrl.learn.ranks import TrainerRanks
from agentrl.store.token_credit import TokenCredit


class TokenCreditCollector:
    """The looks of one step. A trajectory of which turns were withdrawn is trained in several
    contexts, and only its advantages are known."""

    def __init__(self, batch: TrainingBatch, credited: Sequence[CreditedSample]) -> None:
        self._owners = [
            owner
            for owner, group in zip(batch.owners, batch.groups, strict=True)
            for _ in range(len(group.samples))
        ]
        self._credited = credited
        # What selects, anchors and shapes replaces samples and leaves this one array as it is.
        self._places = {id(row.sample.token_ids): at for at, row in enumerate(credited)}
        self._looks: list[tuple[int, Sequence[CreditedSample], Tensor, Tensor]] = []

    def look(
        self,
        update: int,
        rows: Sequence[CreditedSample],
        log_ratios: Float[Tensor, "rows width"],
        entropies: Float[Tensor, "rows width"],
    ) -> None:
        """Take what a micro-batch of these rows has shown; `update` counts optimiser steps."""
        self._looks.append((update, rows, log_ratios.detach(), entropies.detach()))

    def credits(self, ranks: TrainerRanks) -> list[TokenCredit]:
        """Return one record per trajectory that has a reward. A collective."""
        ratios = [_fill_nan(row) for row in self._credited]
        entropies = [_fill_nan(row) for row in self._credited]
        observations = ranks.together(dict(self._collect_looks()))
        for at, update in sorted(observations):
            mask, ratio, entropy = observations[at, update]
            ratios[at][mask], entropies[at][mask] = ratio[mask], entropy[mask]
        return [
            TokenCredit(
                owner=owner,
                sample=row.sample.sample,
                advantages=np.where(row.sample.mask, row.advantages, np.nan)[row.sample.sampled],
                log_ratios=ratio[row.sample.sampled],
                entropies=entropy[row.sample.sampled],
            )
            for owner, row, ratio, entropy in zip(
                self._owners, self._credited, ratios, entropies, strict=True
            )
        ]

    def _collect_looks(self) -> Iterator[tuple[tuple[int, int], tuple[ndarray, ndarray, ndarray]]]:
        """Yield by row and update: which tokens were looked at, their ratios, their entropies."""
        for update, rows, log_ratios, uncertain in self._looks:
            for row, ratio, entropy in zip(rows, log_ratios.cpu(), uncertain.cpu(), strict=True):
                at = self._places.get(id(row.sample.token_ids))
                if at is not None:
                    both = unshift(ratio, row.sample), unshift(entropy, row.sample)
                    yield (at, update), (row.sample.mask, *both)


def _fill_nan(row: CreditedSample) -> ndarray:
    return np.full(len(row.sample.token_ids), np.nan, dtype=np.float32)
