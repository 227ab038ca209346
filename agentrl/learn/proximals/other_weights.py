"""Anchors that are other weights than the trainer's: an average of past ones, or those that
sampled. `learn/ewma.py` and `learn/snapshot.py` keep them and score the samples."""

from agentrl.config.learning.proximal import (
    AnyProximal,
    EwmaProximal,
    RevisedEwmaProximal,
    SnapshotProximal,
)
from agentrl.errors import ConfigError
from agentrl.learn.ewma import StepAverage, VersionAverage
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.method import LearnMethod, Need, always
from agentrl.learn.proximal import ELSEWHERE, ProximalFunction, ProximalWeights
from agentrl.learn.proximals.recorded import select_start
from agentrl.learn.snapshot import WeightSnapshots


def anchor_of(
    section: AnyProximal, evidence: LogprobScorer, needs: frozenset[Need] = frozenset()
) -> ProximalWeights:
    """Return the anchor that keeps the weights of a section, if it names any.

    Raises `ConfigError` for a function of the user's that `needs` what only those sections keep.
    """
    match section:
        case EwmaProximal():
            return StepAverage(evidence, beta=section.beta, on_cpu=section.on_cpu)
        case RevisedEwmaProximal():
            return VersionAverage(
                evidence,
                window_versions=section.window_versions,
                reset_below=section.reset_below,
                on_cpu=section.on_cpu,
            )
        case SnapshotProximal():
            return WeightSnapshots(evidence, versions=section.versions)
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


EWMA = LearnMethod(
    EwmaProximal,
    _bind_start,
    "Hilton et al. 2021 (PPO-EWMA), arXiv 2110.00641",
    always("averaged logprobs"),
)
REVISED_EWMA = LearnMethod(
    RevisedEwmaProximal,
    _bind_start,
    "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
    always("averaged logprobs"),
)
SNAPSHOT = LearnMethod(
    SnapshotProximal,
    _bind_start,
    "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
    always("past logprobs"),
)
