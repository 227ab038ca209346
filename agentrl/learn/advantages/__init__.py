"""The advantage methods, a file each; `learn/advantage.py` is their contract."""

from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.advantages import (
    aepo,
    arpo,
    branch_grpo,
    echo,
    gae,
    gapo,
    gigpo,
    grpo,
    mc_grpo,
    milestones,
    nudge,
    poise,
    reinforce_pp,
    segment_reinforce,
    tree_grpo,
    tree_rl,
    ui_s1,
    xrpo,
)
from agentrl.learn.method import LearnMethod

METHODS: tuple[LearnMethod[AdvantageFunction], ...] = (
    grpo.METHOD,
    grpo.RLOO,
    reinforce_pp.PLAIN,
    reinforce_pp.BASELINE,
    gae.METHOD,
    segment_reinforce.METHOD,
    gigpo.METHOD,
    ui_s1.METHOD,
    milestones.METHOD,
    nudge.METHOD,
    mc_grpo.METHOD,
    gapo.METHOD,
    poise.METHOD,
    xrpo.METHOD,
    arpo.METHOD,
    aepo.METHOD,
    echo.METHOD,
    tree_grpo.METHOD,
    tree_rl.METHOD,
    branch_grpo.METHOD,
)
