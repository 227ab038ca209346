"""Shared parts of environments on pooled resources: browsers, desktops, lent for an episode."""

from agentrl_envs.pooled.background import BackgroundTasks
from agentrl_envs.pooled.env import OVER, PooledEnv, PooledEpisode, TaskPack
from agentrl_envs.pooled.permits import PoolPermits
from agentrl_envs.pooled.pool_handle import PoolHandle, PoolKind, ResourcePool

__all__ = [
    "OVER",
    "BackgroundTasks",
    "PoolHandle",
    "PoolKind",
    "PoolPermits",
    "PooledEnv",
    "PooledEpisode",
    "ResourcePool",
    "TaskPack",
]
