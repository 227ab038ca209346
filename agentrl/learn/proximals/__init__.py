"""The proximal policies, a file each; `learn/proximal.py` is their contract."""

from agentrl.learn.method import LearnMethod
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.proximals import interpolated, other_weights, recorded

METHODS: tuple[LearnMethod[ProximalFunction], ...] = (
    recorded.RECOMPUTED,
    recorded.BEHAVIOUR,
    recorded.CURRENT,
    interpolated.LOG_LINEAR,
    interpolated.LINEAR,
    other_weights.EWMA,
    other_weights.REVISED_EWMA,
    other_weights.SNAPSHOT,
)
"""Every method of the slot."""
