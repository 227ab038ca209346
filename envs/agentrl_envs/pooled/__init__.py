"""Shared parts of environments on pooled resources: browsers, desktops, lent for an episode."""

from agentrl_envs.pooled.env import OVER, PooledEnv, PooledEpisode, TaskPack
from agentrl_envs.pooled.pool_handle import PoolHandle, PoolKind, ResourcePool
from agentrl_envs.pooled.pool_parts import BackgroundTasks, PoolPermits

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
