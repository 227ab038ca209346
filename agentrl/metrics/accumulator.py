"""Numbers of a training step, collected over micro-batches without waiting for the device."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MetricTotals:
    """Content of a tally, by name, as plain numbers that another process can read."""

    sums: Mapping[str, float]
    counts: Mapping[str, int]
    peaks: Mapping[str, float]


class MetricAccumulator:
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

    def numbers(self) -> "MetricTotals":
        """Return the collected values as numbers; this waits for the device."""
        return MetricTotals(
            sums={name: float(sum(sums)) for name, sums in self._sums.items()},
            counts=dict(self._counts),
            peaks={name: float(max(values)) for name, values in self._peaks.items()},
        )

    @classmethod
    def from_totals(cls, parts: Iterable["MetricTotals"]) -> "MetricAccumulator":
        """Return the merged tally of several."""
        tally = cls()
        for part in parts:
            for name, value in part.sums.items():
                tally._sums[name].append(torch.tensor(value, dtype=torch.float64))
                tally._counts[name] += part.counts[name]
            for name, value in part.peaks.items():
                tally._peaks[name].append(torch.tensor(value, dtype=torch.float64))
        return tally

    def take(self, other: "MetricAccumulator") -> None:
        """Collect what another one has, too."""
        for name, sums in other._sums.items():
            self._sums[name] += sums
            self._counts[name] += other._counts[name]
        for name, peaks in other._peaks.items():
            self._peaks[name] += peaks

    def results(self) -> dict[str, float]:
        """Return every mean and maximum."""
        means = {n: float(sum(sums)) / self._counts[n] for n, sums in self._sums.items()}
        return means | {name: float(max(values)) for name, values in self._peaks.items()}
