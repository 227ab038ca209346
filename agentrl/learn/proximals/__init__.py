"""The proximal policies, a file each; `learn/proximal.py` is their contract."""

from agentrl.learn.method import Method
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.proximals import recorded

METHODS: tuple[Method[ProximalFunction], ...] = (recorded.RECOMPUTED, recorded.BEHAVIOUR)
"""Every method of the slot."""
