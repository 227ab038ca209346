"""The sample and token selections, a file each; `learn/selection.py` is their contract."""

from agentrl.learn.method import LearnMethod
from agentrl.learn.selection import SelectionFunction
from agentrl.learn.selections import d3s, overlong

METHODS: tuple[LearnMethod[SelectionFunction], ...] = (d3s.METHOD, overlong.METHOD)
"""Every method of the slot."""
