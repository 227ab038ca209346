"""The reward shapings, a file each; `learn/shaping.py` is their contract."""

from agentrl.learn.method import LearnMethod
from agentrl.learn.shaping import ShapingFunction
from agentrl.learn.shapings import fapo, overlong

METHODS: tuple[LearnMethod[ShapingFunction], ...] = (overlong.METHOD, fapo.METHOD)
"""Every method of the slot."""
