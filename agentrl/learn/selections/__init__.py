"""The sample and token selections, a file each; `learn/selection.py` is their contract."""

from agentrl.learn.method import Method
from agentrl.learn.selection import SelectionFunction

METHODS: tuple[Method[SelectionFunction], ...] = ()
"""Every method of the slot."""
