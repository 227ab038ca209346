"""The policy losses, a file each; `learn/loss.py` is their contract."""

from agentrl.learn.loss import AnyLossFunction
from agentrl.learn.losses import ppo_clip
from agentrl.learn.method import Method

METHODS: tuple[Method[AnyLossFunction], ...] = (ppo_clip.METHOD,)
"""Every method of the slot."""
