"""Numbers of a training step, collected over micro-batches without waiting for the device."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MetricTotals:
    """Content of a tally, by name, as plain numbers that another process can read."""

    sums: Mapping[str, float]
    counts: Mapping[str, int]
    peaks: Mapping[str, float]


class MetricAccumulator:
    """Means and maxima by name. Owned by one training step; read once, at its end.

    To choose values by a mask (`values[mask]`) would wait for the device, which has to say how many
    there are; `where` does not. A name of which no value counts has no result.
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._counts: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._peaks: defaultdict[str, list[Tensor]] = defaultdict(list)

    def mean(self, name: str, values: Tensor | float, *, where: Tensor | None = None) -> None:
        """Let every one of `values`, or those at True of `where`, count in the mean of a name."""
        numbers = torch.as_tensor(values, dtype=torch.float64).detach()
        if where is None:
            count = torch.tensor(numbers.numel())
        else:
            numbers, count = torch.where(where, numbers, 0.0), where.sum()
        self._sums[name].append(numbers.sum())
        self._counts[name].append(count)

    def peak(self, name: str, values: Tensor, *, where: Tensor | None = None) -> None:
        """Let `values`, or those at True of `where`, count in the maximum of a name."""
        numbers = values.detach().double()
        if where is not None:
            numbers = torch.where(where, numbers, -torch.inf)
        if numbers.numel():
            self._peaks[name].append(numbers.max())

    def numbers(self) -> "MetricTotals":
        """Return the collected values as numbers; this waits for the device."""
        sums = read_numbers({name: sum(sums, _ZERO) for name, sums in self._sums.items()})
        counts = read_numbers({name: sum(n, _NONE) for name, n in self._counts.items()})
        peaks = {name: reduce(torch.maximum, values) for name, values in self._peaks.items()}
        return MetricTotals(
            sums={name: value for name, value in sums.items() if counts[name]},
            counts={name: int(count) for name, count in counts.items() if count},
            peaks={n: value for n, value in read_numbers(peaks).items() if value != -torch.inf},
        )

    @classmethod
    def from_totals(cls, parts: Iterable["MetricTotals"]) -> "MetricAccumulator":
        """Return the merged tally of several."""
        tally = cls()
        for part in parts:
            for name, value in part.sums.items():
                tally._sums[name].append(torch.tensor(value, dtype=torch.float64))
                tally._counts[name].append(torch.tensor(part.counts[name]))
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
        """Return every mean and maximum; this waits for the device."""
        totals = self.numbers()
        means = {name: value / totals.counts[name] for name, value in totals.sums.items()}
        return means | dict(totals.peaks)


_ZERO = torch.zeros((), dtype=torch.float64)
_NONE = torch.zeros((), dtype=torch.int64)


def read_numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return tensors of one number each as plain numbers; waits once for each of their devices."""
    names: defaultdict[torch.device, list[str]] = defaultdict(list)
    for name, value in values.items():
        names[value.device].append(name)
    read: dict[str, float] = {}
    for group in names.values():
        numbers = torch.stack([values[name].double() for name in group]).tolist()
        read |= dict(zip(group, numbers, strict=True))
    return {name: read[name] for name in values}
