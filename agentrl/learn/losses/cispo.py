"""CISPO and the plain policy gradient: log-probs with a weight that carries no gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import CispoLoss, ReinforceLoss
from agentrl.learn.loss import LossFunction, TokenLoss, ratio
from agentrl.learn.method import LearnMethod, bind_knobs


def cispo(
    logprobs: Float[Tensor, "*shape"],
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> TokenLoss:
    """Return -clip(ratio, 1 - `clip_low`, 1 + `clip_high`) x A x log-prob, the ratio detached.

    The gradient is never 0 where A and the bounded ratio are not. `clipped` says where the ratio
    was bounded.
    Source: MiniMax 2025 (MiniMax-M1, CISPO), arXiv 2506.13585, equations 4 and 5.
    """
    current = ratio(log_ratio.detach())
    bounded = current.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(-bounded * advantages * logprobs, (bounded != current) & (advantages != 0))


def reinforce(logprobs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"]) -> TokenLoss:
    """Return -A x log-prob (Williams 1992); nothing is bounded."""
    return TokenLoss(-advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool))


def _bind(section: CispoLoss) -> LossFunction:
    loss = bind_knobs(cispo)(section)
    return lambda tokens: loss(tokens.logprobs, tokens.log_ratio, tokens.advantages)


def _bind_reinforce(section: ReinforceLoss) -> LossFunction:
    return lambda tokens: reinforce(tokens.logprobs, tokens.advantages)


CISPO = LearnMethod(CispoLoss, _bind, "MiniMax 2025, arXiv 2506.13585")
REINFORCE = LearnMethod(
    ReinforceLoss, _bind_reinforce, "Williams 1992, Machine Learning 8, 229-256"
)
