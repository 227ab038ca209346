"""Over what a ratio is taken: a token, or all sampled tokens of a sequence."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.correction import Level
from agentrl.learn.correction import PolicyMismatch, token_ratio
from agentrl.learn.loss import LOG_RATIO_LIMIT


def ratios(tokens: PolicyMismatch, level: Level) -> Float[Tensor, "rows width"]:
    """Return proximal / behaviour at a level, on every token of the mask; 0 off it.

    `geometric` is exp of the mean log-ratio (AReaL's weight of a sequence, arXiv 2505.24298).
    Log-ratios are summed first and the result is cut to +-20, so that two large ones of opposite
    sign still cancel.
    """
    if level == "token":
        return token_ratio(tokens)
    total = torch.where(tokens.mask, tokens.gaps, 0.0).sum(dim=-1, keepdim=True)
    if level == "geometric":
        total = total / tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    whole = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.where(tokens.mask, whole, 0.0)
