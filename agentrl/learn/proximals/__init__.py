"""The proximal policies, a file each; `learn/proximal.py` is their contract."""

from agentrl.learn.method import Method
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.proximals import interpolated, kept, recorded

METHODS: tuple[Method[ProximalFunction], ...] = (
    recorded.RECOMPUTED,
    recorded.BEHAVIOUR,
    recorded.CURRENT,
    interpolated.LOG_LINEAR,
    interpolated.LINEAR,
    kept.EWMA,
    kept.REVISED_EWMA,
    kept.SNAPSHOT,
)
"""Every method of the slot."""
