"""What a training step made of each token, collected while it trains. It changes nothing.

One look per micro-batch at what the loss has computed anyway. The last look at a token counts: with
several epochs that is the policy nearest to the new weights.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from agentrl.credit import TokenCredit
from agentrl.learn.batch import Row, unshifted
from agentrl.learn.sample import Group
from agentrl.trajectory import Tree, reward_of


class Taught:
    """The looks of one step. A trajectory of which turns were withdrawn is trained in several
    contexts, and only its advantages are known."""

    def __init__(
        self, trees: Sequence[Tree], groups: Sequence[Group], credited: Sequence[Row]
    ) -> None:
        """`groups` are those of the trees that have a reward, and `credited` all their samples."""
        owners = (at for at, tree in enumerate(trees) if _has_reward(tree))
        self._owners = [
            owner
            for owner, group in zip(owners, groups, strict=True)
            for _ in range(len(group.samples))
        ]
        self._credited = credited
        # What selects, anchors and shapes replaces samples and leaves this one array as it is.
        self._places = {id(row.sample.token_ids): at for at, row in enumerate(credited)}
        self._looks: list[tuple[Sequence[Row], Tensor, Tensor]] = []

    def look(
        self,
        rows: Sequence[Row],
        log_ratios: Float[Tensor, "rows width"],
        entropies: Float[Tensor, "rows width"],
    ) -> None:
        """Take what a micro-batch of these rows has shown."""
        self._looks.append((rows, log_ratios.detach(), entropies.detach()))

    def credits(self) -> list[TokenCredit]:
        """Return one record per trajectory that has a reward."""
        ratios = [_nothing(row) for row in self._credited]
        entropies = [_nothing(row) for row in self._credited]
        for rows, log_ratios, uncertain in self._looks:
            for row, ratio, entropy in zip(rows, log_ratios.cpu(), uncertain.cpu(), strict=True):
                at = self._places.get(id(row.sample.token_ids))
                if at is not None:
                    mask = row.sample.mask
                    ratios[at][mask] = unshifted(ratio, row.sample)[mask]
                    entropies[at][mask] = unshifted(entropy, row.sample)[mask]
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


def _has_reward(tree: Tree) -> bool:
    return any(reward_of(leaf.outcome) is not None for leaf in tree.leaves)


def _nothing(row: Row) -> ndarray:
    return np.full(len(row.sample.token_ids), np.nan, dtype=np.float32)
