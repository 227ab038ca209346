"""The off-policy corrections, a file each; `learn/correction.py` is their contract."""

from agentrl.learn.correction import AnyCorrectionFunction
from agentrl.learn.corrections import floored, icepop, truncated
from agentrl.learn.method import LearnMethod

METHODS: tuple[LearnMethod[AnyCorrectionFunction], ...] = (
    truncated.NONE,
    truncated.TRUNCATED,
    icepop.METHOD,
    floored.METHOD,
)
"""Every method of the slot."""
