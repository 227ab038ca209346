"""CISPO and the plain policy gradient: log-probs with a weight that carries no gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import CispoLoss, ReinforceLoss
from agentrl.learn.loss import LossFunction, PolicyTokens, TokenLoss, ratio
from agentrl.learn.method import LearnMethod


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
    clip_low, clip_high = section.clip_low, section.clip_high

    def loss(tokens: PolicyTokens) -> TokenLoss:
        return cispo(
            tokens.logprobs,
            tokens.log_ratio,
            tokens.advantages,
            clip_low=clip_low,
            clip_high=clip_high,
        )

    return loss


def _reinforce(section: ReinforceLoss) -> LossFunction:
    def loss(tokens: PolicyTokens) -> TokenLoss:
        return reinforce(tokens.logprobs, tokens.advantages)

    return loss


CISPO = LearnMethod(CispoLoss, _bind, "MiniMax 2025, arXiv 2506.13585")
REINFORCE = LearnMethod(ReinforceLoss, _reinforce, "Williams 1992, Machine Learning 8, 229-256")
