"""The loss of one micro-batch: correction x weight x clipped loss, aggregated; what was seen."""

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.learn.aggregate import Aggregation, Counts, aggregate
from agentrl.learn.batch import MicroBatch
from agentrl.learn.correction import known, log_ratio
from agentrl.learn.forward import score
from agentrl.learn.gap import observe_gap
from agentrl.learn.loss import PolicyTokens
from agentrl.learn.methods import correction_of, loss_of, needs_of
from agentrl.learn.tally import Tally


class PolicyGradient:
    """The three policies of a micro-batch and the loss they make. Holds no state of its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnSection,
        *,
        temperature: float,
        head_at_positions: bool,
    ) -> None:
        self._model = model
        self._temperature = temperature
        self._head_at_positions = head_at_positions
        self._loss = loss_of(config.loss)
        self._correction = correction_of(config.correction)
        self._is_decoupled = "proximal logprobs" in needs_of(config)
        self._how: Aggregation = config.aggregation

    def loss(
        self, batch: MicroBatch, *, counts: Counts, tally: Tally, measure_gap: bool
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the loss of its optimiser step.

        Without proximal log-probs in the batch the current policy stands for the proximal one,
        detached. `measure_gap` says that the current weights are those at batch start, so that
        they may be compared with the engine even where nothing else stands for them.
        """
        scores = score(
            self._model,
            batch.tokens,
            temperature=self._temperature,
            head_at_positions=self._head_at_positions,
        )
        start = scores.logprobs.detach() if batch.proximal is None else batch.proximal
        gaps = log_ratio(start, batch.behaviour, batch.mask)
        weights = self._correction(gaps, batch.mask)
        anchor = start if self._is_decoupled else known(batch.behaviour, instead=start)
        tokens = self._loss(
            PolicyTokens(
                logprobs=scores.logprobs,
                proximal=anchor,
                advantages=batch.advantages,
                mask=batch.mask,
            )
        )
        losses = weights.applied * tokens.losses
        if batch.weights is not None:
            losses = losses * batch.weights
        loss = aggregate(losses, batch.mask, how=self._how, counts=counts)
        tally.mean("ratio/clip_fraction", tokens.clipped[batch.mask].float())
        tally.mean("entropy", scores.entropies[batch.mask])
        if measure_gap or batch.proximal is not None:
            observe_gap(
                tally, gaps=gaps, behaviour=batch.behaviour, weights=weights, mask=batch.mask
            )
        return loss
