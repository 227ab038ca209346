"""Anchors between behaviour and current, by age, which need no forward pass."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from agentrl.config.learning.proximal import LinearProximal, LogLinearProximal
from agentrl.learn.method import LearnMethod, always, bind_knobs
from agentrl.learn.proximal import AnchorTokens


def alpha(ages: Int[Tensor, "rows width"], *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return the position of the anchor on the way from behaviour (0) to current (1).

    It is (v_anchor - v_behaviour) / (v_current - v_behaviour) with the anchor `lag` versions before
    the trainer's: 0 for tokens that are as young as the anchor or younger, and 1 for those of the
    trainer's own version, where the quotient has no value.
    """
    between = (ages - lag).clamp(min=0) / ages.clamp(min=1)
    return torch.where(ages > 0, between, 1.0)


def log_linear(tokens: AnchorTokens, *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return log mu + alpha (log pi - log mu). Source: AReaL (arXiv 2505.24298), its code."""
    share = alpha(tokens.ages, lag=lag)
    return tokens.behaviour + share * (tokens.current - tokens.behaviour)


def linear(tokens: AnchorTokens, *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return log((1 - alpha) mu + alpha pi). Source: AReaL (arXiv 2505.24298), its code."""
    share = alpha(tokens.ages, lag=lag)
    return torch.logaddexp((1 - share).log() + tokens.behaviour, share.log() + tokens.current)


_SOURCE = "Fu et al. 2025 (AReaL), arXiv 2505.24298"
LOG_LINEAR = LearnMethod(
    LogLinearProximal, bind_knobs(log_linear), _SOURCE, always("behaviour logprobs")
)
LINEAR = LearnMethod(LinearProximal, bind_knobs(linear), _SOURCE, always("behaviour logprobs"))
