"""Gap between the log-probs of engine and trainer on the tokens of a batch."""

import logging
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentrl.config.learn import GapAlarmSection
from agentrl.errors import LearnError
from agentrl.learn.correction import CorrectionWeights
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.metrics.accumulator import MetricAccumulator

_log = logging.getLogger(__name__)


def observe_gap(
    tally: MetricAccumulator,
    *,
    gaps: Float[Tensor, "rows width"],
    behaviour: Float[Tensor, "rows width"],
    ages: Int[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    other_prompt: Bool[Tensor, "rows 1"] | None = None,
) -> None:
    """Count the log-ratios trainer / behaviour of the sampled tokens.

    `engine_gap/kl` is the k3 estimate of KL(behaviour || trainer), which is never negative;
    `engine_gap/kl_k1` is the plain mean of log(behaviour / trainer). Tokens of age 0 are counted
    apart too: there both have the same weights, and only numerics may differ. Rows after another
    prompt than they were sampled after are not among those.
    """
    d = gaps.double()
    tally.mean("engine_gap/mean_abs", d.abs(), where=mask)
    tally.peak("engine_gap/max", d.abs(), where=mask)
    tally.mean("engine_gap/kl_k1", -d, where=mask)
    cut = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    k3 = torch.expm1(cut) - cut
    tally.mean("engine_gap/kl", k3, where=mask)
    finite = behaviour.isfinite()
    tally.mean("engine_gap/nonfinite", ~finite, where=mask)
    tally.mean("ratio", cut.exp(), where=mask)
    tally.mean("ratio_squared", (2 * cut).exp(), where=mask)
    same = (ages == 0) & finite & mask
    if other_prompt is not None:
        same = same & ~other_prompt
    tally.mean("engine_gap/age0_fraction", same, where=mask)
    tally.mean("engine_gap/age0_mean_abs", d.abs(), where=same)
    tally.peak("engine_gap/age0_max", d.abs(), where=same)
    tally.mean("engine_gap/age0_kl", k3, where=same)


def observe_weights(
    tally: MetricAccumulator, weights: CorrectionWeights, mask: Bool[Tensor, "rows width"]
) -> None:
    """Count what a correction made of the ratios proximal / behaviour."""
    raw, applied = weights.raw, weights.applied.double()
    tally.mean("tis/clipped_fraction", raw > weights.cap, where=mask)
    tally.mean("tis/low_fraction", raw < 1 / weights.cap, where=mask)
    tally.mean("correction/zero_fraction", applied == 0, where=mask)
    tally.mean("correction/mean", applied, where=mask)
    tally.mean("weight_squared", applied.square(), where=mask)


def gap_metrics(tally: MetricAccumulator) -> dict[str, float]:
    """Return everything the tally holds, with the moments of ratios and weights made into figures.

    `engine_gap/ess` is the effective sample size of the ratios as a fraction of the tokens,
    (mean r)^2 / mean r^2, and `correction/ess` that of the weights that were applied;
    `engine_gap/chi2` is the chi-squared divergence, mean r^2 - 1.
    """
    metrics = dict(tally.results())
    mean, squared = metrics.pop("ratio"), metrics.pop("ratio_squared")
    weight, weight_squared = metrics["correction/mean"], metrics.pop("weight_squared")
    return metrics | {
        "engine_gap/ess": mean**2 / squared,
        "engine_gap/chi2": squared - 1,
        "correction/ess": weight**2 / weight_squared if weight_squared else 0.0,
    }


class GapAlarm:
    """Stops a run, or says so once, where engine and trainer disagree under the same weights."""

    def __init__(self, section: GapAlarmSection) -> None:
        self._action = section.action
        self._limit = section.mean_abs
        self._said = False

    def look(self, tally: MetricAccumulator) -> None:
        """Act on what a tally holds of tokens of age 0; raise `LearnError` if that is to stop."""
        if self._action == "none" or self._said:
            return
        text = complaint(tally.results(), limit=self._limit)
        if text is None:
            return
        if self._action == "stop":
            raise LearnError(f"{text}; or set learn.gap_alarm.action to warn")
        self._said = True
        _log.warning("%s", text)


def complaint(seen: Mapping[str, float], *, limit: float) -> str | None:
    """Return an error text for a gap on tokens of age 0 above `limit`, None where it is within.

    A batch without such tokens, or whose engine gave no log-probs, says nothing about it. A gap
    that is no number is beyond any limit.
    """
    gap = seen.get("engine_gap/age0_mean_abs")
    if gap is None or gap <= limit:
        return None
    return (
        "engine and trainer disagree: on tokens sampled with the same weights "
        f"({seen['engine_gap/age0_fraction']:.0%} of those seen) their log-probs differ by "
        f"{gap:.3g} nats on average and {seen['engine_gap/age0_max']:.3g} at most, but "
        f"learn.gap_alarm.mean_abs allows {limit:g}. Possible causes: sampling.top_p or top_k, a "
        "different temperature, a failed weight update, or recorded tokens that are not the "
        "sampled ones. If the cause is only numerical, raise learn.gap_alarm.mean_abs"
    )
