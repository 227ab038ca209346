"""Off-policy sequence masking: no negative credit where the policy has moved on."""

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from agentrl.config.learning.rejection import OpsmRejection
from agentrl.learn.correction import PolicyMismatch
from agentrl.learn.method import LearnMethod, Need, bind_knobs


def opsm(
    tokens: PolicyMismatch,
    *,
    delta: float = 1e-4,
    anchor: Literal["proximal", "behaviour"] = "proximal",
) -> Bool[Tensor, "rows width"]:
    """Return all but the tokens of negative advantage in rows with mean log(anchor / current)
    above `delta`.

    Source: slime (OPSM), from DeepSeek-V3.2's sequence masking, which compares with the policy
    that sampled: `anchor` behaviour.
    """
    moved = -tokens.drift if anchor == "proximal" else -(tokens.drift + tokens.gaps)
    total = torch.where(tokens.mask, moved, 0.0).sum(dim=-1, keepdim=True)
    mean = total / tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return ~((tokens.advantages < 0) & (mean > delta))


def _needs(section: OpsmRejection) -> frozenset[Need]:
    return frozenset({"behaviour logprobs"} if section.anchor == "behaviour" else ())


METHOD = LearnMethod(
    OpsmRejection, bind_knobs(opsm), "slime; DeepSeek-AI 2025 (DeepSeek-V3.2)", _needs
)
