"""The loss of an optimiser step: correction x weight x clipped loss, aggregated; what was seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentrl.config.learn import LearnSection
from agentrl.config.learning.loss import Aggregation, aggregation_of
from agentrl.learn.aggregate import LossDenominators, aggregate
from agentrl.learn.correction import (
    CorrectionFunction,
    PlannedCorrection,
    PolicyMismatch,
    fill_unknown,
    log_ratio,
)
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_gap import observe_gap, observe_weights
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.loss import LossFunction, PlannedLoss, PolicyTokens
from agentrl.learn.methods import LearnMethods
from agentrl.learn.micro_batch import CreditedSample, MicroBatch, micro_batch
from agentrl.learn.proximal import ELSEWHERE, AnchorTokens
from agentrl.learn.regularisers import LossRegularisers
from agentrl.learn.sequence_layout import no_tokens
from agentrl.metrics.accumulator import MetricAccumulator
from agentrl.models.devices import computing_device


@dataclass(frozen=True, slots=True)
class StepMethods:
    """Loss and correction of one optimiser step, their thresholds settled."""

    loss: LossFunction
    correction: CorrectionFunction
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, eq=False)
class _Policies:
    tokens: PolicyTokens
    mismatch: PolicyMismatch
    start: Float[Tensor, "rows width"]


class PolicyGradient:
    """The three policies of a micro-batch and the loss they make. Holds no state of its own."""

    def __init__(
        self,
        config: LearnSection,
        *,
        methods: LearnMethods,
        scorer: LogprobScorer,
    ) -> None:
        self._scorer = scorer
        self._methods = methods
        self._regularisers = LossRegularisers.from_config(config)
        self._how: Aggregation = config.aggregation or aggregation_of(config.loss)
        self._horizon_tokens = config.horizon_tokens

    def settle(self, rows: Sequence[CreditedSample], *, version: int) -> StepMethods:
        """Return the loss and the correction of an optimiser step over `rows`.

        Only where one of them is planned are all rows looked at first, by a forward pass.
        """
        loss, correction = self._methods.loss, self._methods.correction
        if not isinstance(loss, PlannedLoss) and not isinstance(correction, PlannedCorrection):
            return StepMethods(loss, correction)
        whole = micro_batch(
            rows, layout=PaddedLayout(limit_tokens=0), device=computing_device(self._scorer.model)
        )
        policies = self._score_rows(rows, whole, version=version)
        if isinstance(correction, PlannedCorrection):
            correction = correction.plan(policies.mismatch)
        if not isinstance(loss, PlannedLoss):
            return StepMethods(loss, correction)
        weights = correction(policies.mismatch).applied
        for rejection in self._methods.rejections:
            weights = torch.where(rejection(policies.mismatch), weights, 0.0)
        if whole.weights is not None:
            weights = weights * whole.weights
        settled = loss.plan(policies.tokens, weights)
        return StepMethods(settled.loss, correction, settled.figures)

    def loss(
        self,
        batch: MicroBatch,
        step: StepMethods,
        *,
        version: int,
        counts: LossDenominators,
        tally: MetricAccumulator,
        measure_gap: bool,
        look: Callable[[Tensor, Tensor], None] | None = None,
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the loss of its optimiser step.

        Without proximal log-probs in the batch the current policy stands for the one at batch
        start, detached. `measure_gap` says that it is that one, so that it may be compared with the
        engine even where nothing else stands for it. `look` is shown, `rows` x `width`, the
        log-ratios of the current policy to the one that sampled, and the entropies.
        """
        has_bonus = self._regularisers.entropy_bonus > 0
        scores = self._scorer.score_tokens(batch.tokens, entropy_gradient=has_bonus)
        policies = self._compare_policies(batch, scores.logprobs, version=version)
        if look is not None:
            current = scores.logprobs.detach()
            look(log_ratio(current, policies.tokens.behaviour, batch.mask), scores.entropies)
        weights = step.correction(policies.mismatch)
        tokens = step.loss(policies.tokens)
        losses = weights.applied * tokens.losses
        active = ~tokens.clipped & (weights.applied > 0)
        for keep_mask in (rejection(policies.mismatch) for rejection in self._methods.rejections):
            losses = torch.where(keep_mask, losses, 0.0)
            active = active & keep_mask
            tally.mean("rejection/fraction", ~keep_mask, where=batch.mask)
        if batch.weights is not None:
            losses = losses * batch.weights
        # Added last: neither weights nor rejections are about what regularises.
        losses = self._regularisers.add_terms(
            losses, policies.tokens, batch.reference, scores.entropies, tally
        )
        loss = aggregate(
            losses,
            batch.mask,
            how=self._how,
            counts=counts,
            horizon_tokens=self._horizon_tokens,
            shares=batch.shares,
        )
        tally.mean("ratio/clip_fraction", tokens.clipped, where=batch.mask)
        tally.mean("ratio/active_fraction", active, where=batch.mask)
        tally.mean("entropy", scores.entropies, where=batch.mask)
        observe_weights(tally, weights, batch.mask)
        is_elsewhere = bool(self._methods.needs & ELSEWHERE)
        if measure_gap or (batch.proximal is not None and not is_elsewhere):
            start = scores.logprobs if is_elsewhere else policies.start
            observe_gap(
                tally,
                gaps=log_ratio(start, batch.behaviour, batch.mask),
                behaviour=batch.behaviour,
                ages=policies.mismatch.ages,
                mask=batch.mask,
                other_prompt=batch.other_prompt,
            )
        return loss

    def unhinted_loss(
        self, batch: MicroBatch, *, trajectories: int, tally: MetricAccumulator
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the second loss of samples with a hint.

        `trajectories` of the optimiser step have it; see `hint.make_unhinted_rows`.
        """
        logprobs = self._scorer.score_tokens(batch.tokens).logprobs
        tally.mean("hint/logprob", logprobs, where=batch.mask)
        return torch.where(batch.mask, -batch.advantages * logprobs, 0.0).sum() / trajectories

    def compute_empty_loss(self) -> Float[Tensor, ""]:
        """Return the loss of a pass without rows, which is 0: other ranks need our weights."""
        return self._scorer.score_tokens(
            no_tokens(computing_device(self._scorer.model))
        ).logprobs.sum()

    def _compare_policies(
        self, batch: MicroBatch, logprobs: Float[Tensor, "rows width"], *, version: int
    ) -> _Policies:
        current = logprobs.detach()
        start = current if batch.proximal is None else batch.proximal
        behaviour = fill_unknown(batch.behaviour, instead=start)
        ages = torch.where(batch.mask, version - batch.versions, 0)
        proximal = self._methods.proximal(
            AnchorTokens(
                current=current, start=start, behaviour=behaviour, mask=batch.mask, ages=ages
            )
        )
        return _Policies(
            tokens=PolicyTokens(
                logprobs=logprobs,
                proximal=proximal,
                behaviour=behaviour,
                advantages=batch.advantages,
                mask=batch.mask,
                turns=batch.turns,
            ),
            mismatch=PolicyMismatch(
                gaps=log_ratio(proximal, behaviour, batch.mask),
                drift=torch.where(batch.mask, current - proximal, 0.0),
                advantages=batch.advantages,
                mask=batch.mask,
                turns=batch.turns,
                ages=ages,
            ),
            start=start,
        )

    def _score_rows(
        self, rows: Sequence[CreditedSample], whole: MicroBatch, *, version: int
    ) -> _Policies:
        scorer, samples = self._scorer, [row.sample for row in rows]
        scored: dict[int, Tensor] = {}
        passes = scorer.ranks.passes(scorer.layout, samples, device=computing_device(scorer.model))
        for indices, tokens in passes:
            with torch.no_grad():
                scored |= dict(zip(indices, scorer.score_tokens(tokens).logprobs, strict=True))
        scored = scorer.ranks.together(scored)
        block = pad_sequence(
            [scored[i][: row.forward_tokens] for i, row in enumerate(rows)], batch_first=True
        )
        return self._compare_policies(whole, block, version=version)
