"""Anchors that are evaluated anyway: the weights at batch start or now, the engine's numbers."""

from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.proximal import (
    BehaviourProximal,
    CurrentProximal,
    RecomputedProximal,
)
from agentrl.learn.method import LearnMethod, always
from agentrl.learn.proximal import AnchorTokens, ProximalFunction


def recomputed(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the weights at batch start (decoupled PPO, arXiv 2505.24298)."""
    return tokens.start


def behaviour(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy that sampled."""
    return tokens.behaviour


def current(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy as it is."""
    return tokens.current


def _recomputed(section: RecomputedProximal) -> ProximalFunction:
    return recomputed


def _behaviour(section: BehaviourProximal) -> ProximalFunction:
    return behaviour


def _current(section: CurrentProximal) -> ProximalFunction:
    return current


RECOMPUTED = LearnMethod(
    RecomputedProximal,
    _recomputed,
    "Fu et al. 2025 (AReaL), arXiv 2505.24298",
    always("proximal logprobs"),
)
BEHAVIOUR = LearnMethod(
    BehaviourProximal,
    _behaviour,
    "Schulman et al. 2017, arXiv 1707.06347",
    always("behaviour logprobs"),
)
CURRENT = LearnMethod(CurrentProximal, _current, "verl, bypass mode with a REINFORCE loss")
