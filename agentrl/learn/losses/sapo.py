"""SAPO: a soft gate around a ratio of 1 in place of a clip."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import SapoLoss
from agentrl.learn.loss import TokenLoss, bind_ratio_loss, ratio
from agentrl.learn.method import LearnMethod


def sapo(
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> TokenLoss:
    """Return -A (4 / temperature) sigmoid(temperature (ratio - 1)), per token.

    With g the sigmoid, the gradient on log-probs is -A 4 g (1 - g) ratio: -A at a ratio of 1, and
    less and less away from it. There is no bound to hit: `clipped` is False.
    Source: Gao et al. 2025 (SAPO), arXiv 2511.20347.
    """
    temperatures = torch.where(advantages > 0, temperature_positive, temperature_negative)
    gate = (temperatures * (ratio(log_ratio) - 1)).sigmoid()
    losses = -advantages * 4 / temperatures * gate
    return TokenLoss(losses, torch.zeros_like(advantages, dtype=torch.bool))


METHOD = LearnMethod(SapoLoss, bind_ratio_loss(sapo), "Gao et al. 2025, arXiv 2511.20347")
