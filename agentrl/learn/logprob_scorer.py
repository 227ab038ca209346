"""Scoring of samples before they get credit: log-probs and entropies at batch start."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.learn.contexts import score_by_context
from agentrl.learn.head import HEAD_CHUNK_TOKENS
from agentrl.learn.lora import is_adapted, silent_adapters
from agentrl.learn.micro_batch import unshift
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.sequence_layout import ModelInputs, SequenceLayout
from agentrl.learn.swap import swap_weights
from agentrl.learn.token_logprobs import TokenLogprobs, score
from agentrl.models.devices import computing_device


def freeze(model: PreTrainedModel, *, shares_weights: bool = False) -> PreTrainedModel:
    """Return a copy that does not train. It may share its weights with a model that is cut up
    afterwards: shards are copies of their own."""
    shared = [p.detach() for p in model.parameters()] if shares_weights else []
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(value, requires_grad=False)
        for parameter, value in zip(model.parameters(), shared, strict=False)
    }
    return copy.deepcopy(model, memo).requires_grad_(False).eval()


@dataclass(frozen=True, slots=True)
class LogprobScorer:
    """One forward pass over all samples of a batch, with the weights as they are now."""

    model: PreTrainedModel
    layout: SequenceLayout
    temperature: float
    head_at_positions: bool
    head_chunk_tokens: int = HEAD_CHUNK_TOKENS
    ranks: TrainerRanks = ALONE
    below_adapters: bool = False
    """True if `score_reference` scores with the weights below the model's adapters."""

    def score_groups(self, groups: Sequence[TrainingGroup]) -> tuple[TrainingGroup, ...]:
        """Return the groups, each sample with proximal log-probs and entropies on its mask.

        They are 0 throughout a sample of which no token trains.
        """

        def record(sample: TrainingSample, logprobs: Tensor, entropies: Tensor) -> TrainingSample:
            return replace(
                sample,
                proximal=unshift(logprobs, sample),
                entropies=unshift(entropies, sample),
            )

        return self._score(groups, record)

    def score_reference(
        self, groups: Sequence[TrainingGroup], weights: Mapping[str, Tensor] | None = None
    ) -> tuple[TrainingGroup, ...]:
        """Return the groups, each sample with this model's log-probs as those of the reference.

        It has `weights`, by name, in place of its own, if there are any.
        """

        def record(sample: TrainingSample, logprobs: Tensor, _: Tensor) -> TrainingSample:
            return replace(sample, reference=unshift(logprobs, sample))

        if weights is None:
            weights = silent_adapters(self.model) if self.below_adapters else {}
        with swap_weights(self.model, weights):
            return self._score(groups, record)

    def score_proximal(self, samples: Sequence[TrainingSample]) -> tuple[TrainingSample, ...]:
        """Return the samples with this model's log-probs as the proximal ones, and no more."""

        def record(sample: TrainingSample, logprobs: Tensor, _: Tensor) -> TrainingSample:
            return replace(sample, proximal=unshift(logprobs, sample))

        return self._score((TrainingGroup("", tuple(samples)),), record)[0].samples

    def score_tokens(self, tokens: ModelInputs, *, entropy_gradient: bool = False) -> TokenLogprobs:
        """Return the log-probs and entropies of one forward pass; see `token_logprobs.score`."""
        return score(
            self.model,
            tokens,
            temperature=self.temperature,
            head_at_positions=self.head_at_positions,
            entropy_gradient=entropy_gradient,
            head_chunk_tokens=self.head_chunk_tokens,
        )

    def frozen(self, model: PreTrainedModel | None = None) -> "LogprobScorer":
        """Return a scorer with the weights as they are now, which will not move.

        They are those of `model`, where it was frozen before; else a copy. A model with adapters
        that have not been trained is not copied: it is scored without them.
        """
        if is_adapted(self.model):
            return replace(self, below_adapters=True)
        return replace(self, model=model or freeze(self.model))

    def _score(
        self,
        groups: Sequence[TrainingGroup],
        record: Callable[[TrainingSample, Tensor, Tensor], TrainingSample],
    ) -> tuple[TrainingGroup, ...]:
        scored = iter(
            score_by_context(
                [sample for group in groups for sample in group.samples],
                lambda samples: self._score_contexts(samples, record),
            )
        )
        return tuple(
            replace(group, samples=tuple(next(scored) for _ in group.samples)) for group in groups
        )

    def _score_contexts(
        self,
        samples: Sequence[TrainingSample],
        record: Callable[[TrainingSample, Tensor, Tensor], TrainingSample],
    ) -> list[TrainingSample]:
        live = [i for i, sample in enumerate(samples) if sample.sampled_tokens]
        empty = torch.zeros(0)
        results = [s if s.sampled_tokens else record(s, empty, empty) for s in samples]
        sequences = [samples[i] for i in live]
        outputs: dict[int, tuple[Tensor, Tensor]] = {}
        for indices, tokens in self.ranks.passes(
            self.layout, sequences, device=computing_device(self.model)
        ):
            with torch.no_grad():
                scores = self.score_tokens(tokens)
            for row, index in enumerate(indices):
                outputs[live[index]] = (scores.logprobs[row], scores.entropies[row])
        for index, (logprobs, entropies) in self.ranks.together(outputs).items():
            results[index] = record(samples[index], logprobs, entropies)
        return results
