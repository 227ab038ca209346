"""What samples are scored with before they get credit: log-probs and entropies at batch start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from agentrl.learn.batch import unshifted
from agentrl.learn.forward import score
from agentrl.learn.sample import Group, Sample
from agentrl.learn.tokens import Layout


@dataclass(frozen=True, slots=True)
class Evidence:
    """One forward pass over all samples of a batch, with the weights as they are now."""

    model: PreTrainedModel
    layout: Layout
    temperature: float
    head_at_positions: bool

    def of(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups, each sample with proximal log-probs and entropies on its mask."""
        samples = [s for group in groups for s in group.samples]
        scored = iter(self._scored(samples))
        return tuple(
            replace(group, samples=tuple(next(scored) for _ in group.samples)) for group in groups
        )

    def _scored(self, samples: Sequence[Sample]) -> list[Sample]:
        found = list(samples)
        live = [i for i, sample in enumerate(samples) if sample.sampled_tokens]
        for chosen in self.layout.plan([samples[i] for i in live]):
            indices = [live[i] for i in chosen]
            tokens = self.layout.tokens([samples[i] for i in indices], device=self.model.device)
            with torch.no_grad():
                scores = score(
                    self.model,
                    tokens,
                    temperature=self.temperature,
                    head_at_positions=self.head_at_positions,
                )
            for row, index in enumerate(indices):
                found[index] = replace(
                    samples[index],
                    proximal=unshifted(scores.logprobs[row], samples[index]),
                    entropies=unshifted(scores.entropies[row], samples[index]),
                )
        return found
