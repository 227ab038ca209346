"""The rejections, a file each; `learn/correction.py` is their contract."""

from agentrl.learn.correction import RejectionFunction
from agentrl.learn.method import LearnMethod
from agentrl.learn.rejections import divergence, opsm, veto

METHODS: tuple[LearnMethod[RejectionFunction], ...] = (divergence.METHOD, veto.METHOD, opsm.METHOD)
"""Every method of the slot."""
