"""Numbers of a training step, collected over micro-batches without waiting for the device."""

from collections import defaultdict

import torch
from torch import Tensor


class Tally:
    """Means and maxima by name. Owned by one training step; read once, at its end."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._peaks: defaultdict[str, list[Tensor]] = defaultdict(list)

    def mean(self, name: str, values: Tensor | float) -> None:
        """Let every one of `values` count in the mean called `name`."""
        numbers = torch.as_tensor(values, dtype=torch.float64).detach()
        if numbers.numel():
            self._sums[name].append(numbers.sum())
            self._counts[name] += numbers.numel()

    def peak(self, name: str, values: Tensor) -> None:
        """Let `values` count in the maximum called `name`."""
        if values.numel():
            self._peaks[name].append(values.detach().double().max())

    def results(self) -> dict[str, float]:
        """Return every mean and maximum."""
        means = {n: float(sum(sums)) / self._counts[n] for n, sums in self._sums.items()}
        return means | {name: float(max(values)) for name, values in self._peaks.items()}
