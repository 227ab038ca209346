"""How far the engine's policy is from the trainer's, on the tokens of a batch."""

from collections.abc import Mapping

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
    raw = weights.raw[mask]
    tally.mean("tis/clipped_fraction", raw > weights.cap)
    tally.mean("tis/low_fraction", raw < 1 / weights.cap)
    tally.mean("raw", raw)
    tally.mean("raw_squared", raw.square())


def gap_metrics(tally: Tally) -> dict[str, float]:
    """Return everything the tally holds, with the moments of the weights made into `tis/ess`.

    The effective sample size is a fraction of the tokens, of the weights before truncation:
    (mean w)^2 / mean w^2.
    """
    seen: Mapping[str, float] = tally.results()
    ess = seen["raw"] ** 2 / seen["raw_squared"]
    return {n: x for n, x in seen.items() if not n.startswith("raw")} | {"tis/ess": ess}
