"""Weights of past versions, so that every token is scored by those that sampled it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.proximal import ProximalWeights
from agentrl.learn.sample import TrainingSample
from agentrl.learn.swap import swap_weights, trainable_parameters


class WeightSnapshots(ProximalWeights):
    """The last versions of a model's weights, in the host's memory.

    Source: snapshot tracking in "Missing Old Logits in Asynchronous Agentic RL" (arXiv 2605.12070).
    """

    name = "snapshots"

    def __init__(self, evidence: LogprobScorer, *, versions: int) -> None:
        self._evidence = evidence
        self._limit = versions
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._replaced = self._tokens = 0

    @property
    def versions(self) -> list[int]:
        """Return the versions that are kept, the oldest first; the last may be the model's own."""
        return sorted(self._kept)

    def score_batch(self, rows: Sequence[CreditedSample], *, version: int) -> list[CreditedSample]:
        """Return the rows with the log-prob of each token under the weights that sampled it.

        A token whose version is not kept gets the oldest one after it. The model's weights are
        kept as `version`, for tokens that come later.
        """
        samples = [row.sample for row in rows]
        versions = sorted({int(v) for s in samples for v in s.versions[s.mask]})
        source = {v: self._closest(v, version) for v in versions}
        self._tokens = sum(sample.sampled_tokens for sample in samples)
        self._replaced = sum(
            int((s.versions[s.mask] == v).sum())
            for v in versions
            if source[v] != v
            for s in samples
        )
        proximals = [np.zeros(len(sample.token_ids)) for sample in samples]
        for source_version in sorted(set(source.values())):
            ours = [v for v in versions if source[v] == source_version]
            weights = {} if source_version == version else self._kept[source_version]
            parts = [_select_versions(sample, ours) for sample in samples]
            with swap_weights(self._evidence.model, weights):
                scored = self._evidence.score_proximal(parts)
            for place, part in zip(proximals, scored, strict=True):
                if part.proximal is not None:
                    place[part.mask] = part.proximal[part.mask]
        self._keep(version)
        return [
            replace(row, sample=replace(row.sample, proximal=logprobs))
            for row, logprobs in zip(rows, proximals, strict=True)
        ]

    def on_step(self, *, active_fraction: float) -> Mapping[str, float]:
        """Return the number of versions kept, and the share of tokens too late for theirs."""
        return {
            "proximal/versions": float(len(self._kept)),
            "proximal/replaced_fraction": self._replaced / max(self._tokens, 1),
        }

    def forget(self, *, before: int) -> None:
        self._kept = {v: weights for v, weights in self._kept.items() if v >= before}

    def state(self) -> dict[str, Tensor]:
        return {
            f"{version}.{name}": value
            for version, weights in self._kept.items()
            for name, value in weights.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._kept = {}
        for name, value in state.items():
            version, _, parameter = name.partition(".")
            self._kept.setdefault(int(version), {})[parameter] = value

    def _closest(self, wanted: int, version: int) -> int:
        """Return the version itself, or the first after it that there is."""
        return min((v for v in self._kept if v >= wanted), default=version)

    def _keep(self, version: int) -> None:
        self._kept[version] = {
            name: torch.empty_like(p, device="cpu").copy_(p.detach())
            for name, p in trainable_parameters(self._evidence.model).items()
        }
        for old in self.versions[: -self._limit]:
            del self._kept[old]


def _select_versions(sample: TrainingSample, versions: Sequence[int]) -> TrainingSample:
    return replace(sample, mask=sample.mask & np.isin(sample.versions, versions), proximal=None)
