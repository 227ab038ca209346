"""The reference policy of the KL penalty, and its reset."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.lora import is_adapted
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.swap import trainable_parameters


class ReferencePolicy:
    """The model as it is when this is made, or as it was at the last reset. Owned by the trainer.

    With `reset_every` the model becomes the reference after every so many steps. `frozen` is a copy
    of the model, where there is one already. Source of the reset: Liu et al. 2025 (ProRL, arXiv
    2505.24864) and BroRL (arXiv 2510.01180); the optimiser's state stays.
    """

    name = "reference"

    def __init__(
        self, scorer: LogprobScorer, *, frozen: PreTrainedModel | None, reset_every: int | None
    ) -> None:
        self._model = scorer.model
        self._scorer = scorer.frozen(frozen)
        self._reset_every = reset_every
        self._weights: dict[str, Tensor] = {}
        """Weights of the last reset that the scorer's model does not hold: those of adapters."""
        self._was_reset = False

    def score_groups(self, groups: Sequence[TrainingGroup]) -> tuple[TrainingGroup, ...]:
        """Return the groups, each sample with the reference's log-probs."""
        return self._scorer.score_reference(groups, self._weights or None)

    def on_step(self, *, version: int) -> None:
        """Take over the model's weights if a reset is due after the step to `version`."""
        if self._reset_every is not None and version % self._reset_every == 0:
            self.load_state(trainable_parameters(self._model))

    def is_in(self, version: int) -> bool:
        """Return whether a checkpoint of that version holds a reference."""
        return self._reset_every is not None and version >= self._reset_every

    def state(self) -> dict[str, Tensor]:
        """Return the reference's weights by parameter name; nothing before the first reset."""
        if not self._was_reset:
            return {}
        if self._weights:
            return dict(self._weights)
        names = trainable_parameters(self._model)
        return {n: p.detach() for n, p in self._scorer.model.named_parameters() if n in names}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned, or the weights of a model."""
        self._was_reset = True
        if is_adapted(self._model):
            parameters = trainable_parameters(self._model)
            self._weights = {
                n: state[n].detach().to(p.device).clone() for n, p in parameters.items()
            }
            return
        with torch.no_grad():
            for name, parameter in self._scorer.model.named_parameters():
                if name in state:
                    parameter.copy_(state[name])
