"""How far the engine's policy is from the trainer's, on the tokens of a batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.learn.correction import Weights
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.tally import Tally


def observe_gap(
    tally: Tally,
    *,
    gaps: Float[Tensor, "rows width"],
    behaviour: Float[Tensor, "rows width"],
    weights: Weights,
    mask: Bool[Tensor, "rows width"],
) -> None:
    """Count the log-ratios proximal / behaviour of the sampled tokens, and the weights they got.

    `engine_gap/kl` is the k3 estimate of KL(behaviour || proximal), which is never negative;
    `engine_gap/kl_k1` is the plain mean of log(behaviour / proximal).
    """
    d = gaps[mask]
    tally.mean("engine_gap/mean_abs", d.abs())
    tally.peak("engine_gap/max", d.abs())
    tally.mean("engine_gap/kl_k1", -d)
    cut = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    tally.mean("engine_gap/kl", torch.expm1(cut) - cut)
    tally.mean("engine_gap/nonfinite", ~behaviour[mask].isfinite())
    tally.mean("ratio", cut.exp())
    tally.mean("ratio_squared", (2 * cut).exp())
    raw = weights.raw[mask]
    tally.mean("tis/clipped_fraction", raw > weights.cap)
    tally.mean("tis/low_fraction", raw < 1 / weights.cap)


def gap_metrics(tally: Tally) -> dict[str, float]:
    """Return everything the tally holds, with the moments of the ratios made into two figures.

    `engine_gap/ess` is the effective sample size as a fraction of the tokens,
    (mean r)^2 / mean r^2, and `engine_gap/chi2` the chi-squared divergence, mean r^2 - 1.
    """
    seen = dict(tally.results())
    mean, squared = seen.pop("ratio"), seen.pop("ratio_squared")
    return seen | {"engine_gap/ess": mean**2 / squared, "engine_gap/chi2": squared - 1}
