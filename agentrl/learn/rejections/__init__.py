"""The rejections, a file each; `learn/correction.py` is their contract."""

from agentrl.learn.correction import RejectionFunction
from agentrl.learn.method import Method

METHODS: tuple[Method[RejectionFunction], ...] = ()
"""Every method of the slot."""
