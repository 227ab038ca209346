"""A moving average of the policy's weights: less noise than the last step's, for evaluation."""

from collections.abc import Mapping

import torch
from torch import Tensor


class WeightEma:
    """Owns the average of what an optimiser moves, in float32. It begins at the first weights.

    Source: Polyak and Juditsky 1992, in its exponential form:
    average = decay x average + (1 - decay) x weights, after every update.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, decay: float) -> None:
        self._decay = decay
        self._values = {name: value.detach().clone() for name, value in weights.items()}

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Take in the weights after an update."""
        with torch.no_grad():
            for name, value in self._values.items():
                value.lerp_(weights[name], 1 - self._decay)

    def state(self) -> dict[str, Tensor]:
        """Return the average by parameter name; no copies."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        for name, value in self._values.items():
            value.copy_(state[name])
