"""The advantage methods, a file each; `learn/advantage.py` is their contract."""

from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.advantages import grpo
from agentrl.learn.method import Method

METHODS: tuple[Method[AdvantageFunction], ...] = (grpo.METHOD,)
"""Every method of the slot."""
