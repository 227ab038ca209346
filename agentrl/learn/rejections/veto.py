"""A trajectory is dropped for one token that the trainer's policy all but rules out."""

import math

from jaxtyping import Bool
from torch import Tensor

from agentrl.config.learning.rejection import VetoRejection
from agentrl.learn.correction import PolicyMismatch
from agentrl.learn.method import LearnMethod, always, bind_knobs


def veto(tokens: PolicyMismatch, *, floor: float = 1e-4) -> Bool[Tensor, "rows width"]:
    """Return rows in which no sampled token has proximal / behaviour below `floor`.

    Source: slime's mismatch helper.
    """
    below = tokens.mask & (tokens.gaps < math.log(floor))
    return (~below.any(dim=-1, keepdim=True)).expand_as(tokens.mask)


METHOD = LearnMethod(
    VetoRejection, bind_knobs(veto), "slime, mismatch helper", always("behaviour logprobs")
)
