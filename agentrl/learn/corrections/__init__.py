"""The off-policy corrections, a file each; `learn/correction.py` is their contract."""

from agentrl.learn.correction import AnyCorrectionFunction
from agentrl.learn.corrections import truncated
from agentrl.learn.method import Method

METHODS: tuple[Method[AnyCorrectionFunction], ...] = (truncated.NONE, truncated.TRUNCATED)
"""Every method of the slot."""
