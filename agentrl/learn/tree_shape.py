"""Segments of a group: the tokens that the same samples share.

The nodes of a tree are turns and tool results; what credit depends on is coarser. A segment is a
run of tokens that exactly the same samples hold, so it lies between two branch points. Only samples
count: a branch whose trajectory failed left no sample, and makes no branch point here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.sample import TrainingGroup, TrainingSample


@dataclass(frozen=True, slots=True)
class SharedSegment:
    """Tokens that the same samples hold."""

    samples: tuple[int, ...]
    """Those samples, by their index in the group."""
    parent: int | None
    """The segment before it; None for the root."""
    depth: int
    """Number of branch points before it."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """The segments of one group, and where their tokens are."""

    segments: tuple[SharedSegment, ...]
    """Parents first. The first is the root, which all samples hold, and which may have no tokens:
    the prompt, and what was sampled before the first branch point."""
    places: tuple[Int[ndarray, " _"], ...]
    """The segment of every token of every sample."""
    trees: tuple[int, ...]
    """The tree of every sample, counted from 0. Two are in one tree if they grew from one root, or
    if they share a sampled token; a shared prompt is not enough."""

    @classmethod
    def from_group(cls, group: TrainingGroup) -> "SharedPrefixes":
        """Return the shape of a group, from the nodes of its samples' tokens."""
        holders = _holders(group.samples)
        paths = [_path(sample, holders, len(group.samples)) for sample in group.samples]
        # Along a path the holders only get fewer, so more of them come first.
        keys = sorted({key for path in paths for key in path}, key=lambda key: (-len(key), key))
        index = {key: i for i, key in enumerate(keys)}
        parents = {key: path[i - 1] for path in paths for i, key in enumerate(path) if i}
        segments: list[SharedSegment] = []
        for key in keys:
            parent = index[parents[key]] if key in parents else None
            depth = 0 if parent is None else segments[parent].depth + 1
            segments.append(SharedSegment(key, parent, depth))
        return cls(
            segments=tuple(segments),
            places=tuple(_places(sample, holders, index) for sample in group.samples),
            trees=_trees(group.samples),
        )

    def means(self, values: Sequence[float]) -> Float[ndarray, " segments"]:
        """Return per segment the mean of the samples that hold it; `values` are per sample."""
        sample_values = np.asarray(values, dtype=np.float64)
        return np.array([sample_values[list(segment.samples)].mean() for segment in self.segments])

    def spread(self, values: Float[ndarray, " segments"]) -> TokenAdvantages:
        """Spread a value per segment to every token of every sample."""
        return [values[place] for place in self.places]

    def shares(self) -> Int[ndarray, " segments"]:
        return np.array([len(segment.samples) for segment in self.segments])

    def members(self) -> list[list[int]]:
        tree_samples: list[list[int]] = [[] for _ in range(max(self.trees, default=-1) + 1)]
        for sample, tree in enumerate(self.trees):
            tree_samples[tree].append(sample)
        return tree_samples


def _holders(samples: Sequence[TrainingSample]) -> dict[int, tuple[int, ...]]:
    """Return by node the samples that hold its tokens."""
    holders: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        for node in dict.fromkeys(sample.spans["node"].tolist()):
            holders.setdefault(node, []).append(index)
    return {node: tuple(indices) for node, indices in holders.items()}


def _path(
    sample: TrainingSample, holders: dict[int, tuple[int, ...]], samples: int
) -> list[tuple[int, ...]]:
    """Return the segments of a sample by their holders, the root first."""
    nodes = sample.spans["node"].tolist()
    return list(dict.fromkeys([tuple(range(samples)), *(holders[node] for node in nodes)]))


def _places(
    sample: TrainingSample, holders: dict[int, tuple[int, ...]], index: dict[tuple[int, ...], int]
) -> Int[ndarray, " tokens"]:
    nodes = sample.spans["node"].tolist()
    segments = np.array([index[holders[node]] for node in nodes], dtype=np.int64)
    return np.repeat(segments, sample.spans["tokens"])


def _trees(samples: Sequence[TrainingSample]) -> tuple[int, ...]:
    """Number the trees by root, and by the first node that holds a sampled token."""
    # One that sampled nothing shares nothing: it counts by a number that no node has.
    firsts = [
        int(nodes[0]) if len(nodes := s.spans["node"][s.spans["sampled"]]) else -1 - index
        for index, s in enumerate(samples)
    ]
    # Samples of one root go by the first node of the first of them; so does who shares a node.
    speaker: dict[int, int] = {}
    same: dict[int, int] = {}
    for sample, first in zip(samples, firsts, strict=True):
        if sample.root is not None:
            same[first] = same.get(first, speaker.setdefault(sample.root, first))
    keys = [same.get(first, first) for first in firsts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return tuple(numbers[key] for key in keys)
