"""The advantage methods, a file each; `learn/advantage.py` is their contract."""

from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.advantages import aepo, arpo, branch_grpo, grpo, tree_grpo, tree_rl
from agentrl.learn.method import Method

METHODS: tuple[Method[AdvantageFunction], ...] = (
    grpo.METHOD,
    arpo.METHOD,
    aepo.METHOD,
    tree_grpo.METHOD,
    tree_rl.METHOD,
    branch_grpo.METHOD,
)
"""Every method of the slot."""
