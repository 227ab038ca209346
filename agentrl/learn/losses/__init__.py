"""The policy losses, a file each; `learn/loss.py` is their contract."""

from agentrl.learn.loss import AnyLossFunction
from agentrl.learn.losses import aepo, bapo, cispo, gspo, m2po, ppo_clip, sapo
from agentrl.learn.method import LearnMethod

METHODS: tuple[LearnMethod[AnyLossFunction], ...] = (
    ppo_clip.METHOD,
    aepo.METHOD,
    gspo.METHOD,
    cispo.CISPO,
    sapo.METHOD,
    m2po.METHOD,
    bapo.METHOD,
    cispo.REINFORCE,
)
