"""Anchors that are evaluated anyway: the weights at batch start or now, the engine's numbers."""

from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.proximal import (
    BehaviourProximal,
    CurrentProximal,
    RecomputedProximal,
)
from agentrl.learn.method import LearnMethod, always, bind_knobs
from agentrl.learn.proximal import AnchorTokens


def select_start(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the weights at batch start (decoupled PPO, arXiv 2505.24298)."""
    return tokens.start


def select_behaviour(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy that sampled."""
    return tokens.behaviour


def select_current(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy as it is."""
    return tokens.current


RECOMPUTED = LearnMethod(
    RecomputedProximal,
    bind_knobs(select_start),
    "Fu et al. 2025 (AReaL), arXiv 2505.24298",
    always("proximal logprobs"),
)
BEHAVIOUR = LearnMethod(
    BehaviourProximal,
    bind_knobs(select_behaviour),
    "Schulman et al. 2017, arXiv 1707.06347",
    always("behaviour logprobs"),
)
CURRENT = LearnMethod(
    CurrentProximal, bind_knobs(select_current), "verl, bypass mode with a REINFORCE loss"
)
