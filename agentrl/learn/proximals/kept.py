"""Anchors that are other weights than the trainer's: an average of past ones, or those that
sampled. `learn/ewma.py` and `learn/snapshot.py` keep them and score the samples."""

from agentrl.config.learning.proximal import EwmaProximal, RevisedEwmaProximal, SnapshotProximal
from agentrl.learn.method import Method, always
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.proximals.recorded import recomputed


def _as_scored(
    section: EwmaProximal | RevisedEwmaProximal | SnapshotProximal,
) -> ProximalFunction:
    return recomputed


EWMA = Method(
    EwmaProximal,
    _as_scored,
    "Hilton et al. 2021 (PPO-EWMA), arXiv 2110.00641",
    always("averaged logprobs"),
)
REVISED_EWMA = Method(
    RevisedEwmaProximal,
    _as_scored,
    "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
    always("averaged logprobs"),
)
SNAPSHOT = Method(
    SnapshotProximal,
    _as_scored,
    "Missing Old Logits in Asynchronous Agentic RL, arXiv 2605.12070",
    always("past logprobs"),
)
