"""Shared parts of environments on pooled resources: browsers, desktops, lent for an episode."""

from agentrl_envs.pooled.chores import Chores
from agentrl_envs.pooled.env import OVER, Episode, Pack, PooledEnv
from agentrl_envs.pooled.holding import Holding, Pool, Pools
from agentrl_envs.pooled.places import Places

__all__ = ["OVER", "Chores", "Episode", "Holding", "Pack", "Places", "Pool", "PooledEnv", "Pools"]
