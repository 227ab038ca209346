"""Proximal policies: evaluated anyway, between two others, or of other weights."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from agentrl.config.learning.proximal import (
    AnyProximal,
    BehaviourProximal,
    CurrentProximal,
    EwmaProximal,
    LinearProximal,
    LogLinearProximal,
    RecomputedProximal,
    RevisedEwmaProximal,
    SnapshotProximal,
)
from agentrl.errors import ConfigError
from agentrl.learn.ewma import StepAverage, VersionAverage
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.method import LearnMethod, Need, always, bind_knobs, knobs_of
from agentrl.learn.proximal import ELSEWHERE, AnchorTokens, ProximalFunction, ProximalWeights
from agentrl.learn.snapshot import WeightSnapshots


def select_start(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the weights at batch start (decoupled PPO, arXiv 2505.24298)."""
    return tokens.start


def select_behaviour(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy that sampled."""
    return tokens.behaviour


def select_current(tokens: AnchorTokens) -> Float[Tensor, "rows width"]:
    """Return the log-probs of the policy as it is."""
    return tokens.current


def alpha(ages: Int[Tensor, "rows width"], *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return the position of the anchor on the way from behaviour (0) to current (1).

    It is (v_anchor - v_behaviour) / (v_current - v_behaviour) with the anchor `lag` versions before
    the trainer's: 0 for tokens that are as young as the anchor or younger. Those of the trainer's
    own version are, as in AReaL's code: what sampled them is the policy at batch start.
    """
    return (ages - lag).clamp(min=0) / ages.clamp(min=1)


def log_linear(tokens: AnchorTokens, *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return log mu + alpha (log pi - log mu). Source: AReaL (arXiv 2505.24298), its code."""
    share = alpha(tokens.ages, lag=lag)
    return tokens.behaviour + share * (tokens.current - tokens.behaviour)


def linear(tokens: AnchorTokens, *, lag: int = 1) -> Float[Tensor, "rows width"]:
    """Return log((1 - alpha) mu + alpha pi). Source: AReaL (arXiv 2505.24298), its code."""
    share = alpha(tokens.ages, lag=lag)
    return torch.logaddexp((1 - share).log() + tokens.behaviour, share.log() + tokens.current)


_SOURCE = "Fu et al. 2025 (AReaL), arXiv 2505.24298"


def anchor_of(
    section: AnyProximal, evidence: LogprobScorer, needs: frozenset[Need] = frozenset()
) -> ProximalWeights:
    """Return the anchor that keeps the weights of a section, if it names any.

    Raises `ConfigError` for a function of the user's that `needs` what only those sections keep.
    """
    match section:
        case EwmaProximal():
            return StepAverage(evidence, **knobs_of(section))
        case RevisedEwmaProximal():
            return VersionAverage(evidence, **knobs_of(section))
        case SnapshotProximal():
            return WeightSnapshots(evidence, **knobs_of(section))
        case _:
            if extra_needs := sorted(needs & ELSEWHERE):
                raise ConfigError(
                    f"a method of learn needs {', '.join(extra_needs)}, which learn.proximal "
                    f"{section.name} does not keep; choose ewma, revised_ewma or snapshot"
                )
            return ProximalWeights()


def _bind_start(
    section: EwmaProximal | RevisedEwmaProximal | SnapshotProximal,
) -> ProximalFunction:
    return select_start


METHODS: tuple[LearnMethod[ProximalFunction], ...] = (
    LearnMethod(
        RecomputedProximal,
        bind_knobs(select_start),
        "Fu et al. 2025 (AReaL), arXiv 2505.24298",
        always("proximal logprobs"),
    ),
    LearnMethod(
        BehaviourProximal,
        bind_knobs(select_behaviour),
        "Schulman et al. 2017, arXiv 1707.06347",
        always("behaviour logprobs"),
    ),
    LearnMethod(
        CurrentProximal, bind_knobs(select_current), "verl, bypass mode with a REINFORCE loss"
    ),
    LearnMethod(LogLinearProximal, bind_knobs(log_linear), _SOURCE, always("behaviour logprobs")),
    LearnMethod(LinearProximal, bind_knobs(linear), _SOURCE, always("behaviour logprobs")),
    LearnMethod(
        EwmaProximal,
        _bind_start,
        "Hilton et al. 2021 (PPO-EWMA), arXiv 2110.00641",
        always("averaged logprobs"),
    ),
    LearnMethod(
        RevisedEwmaProximal,
        _bind_start,
        "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
        always("averaged logprobs"),
    ),
    LearnMethod(
        SnapshotProximal,
        _bind_start,
        "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
        always("past logprobs"),
    ),
)
