"""reasoning-gym's procedural task families, solved with a stateful Python tool."""

from agentrl_envs.code.env import CodeEnv

__all__ = ["CodeEnv"]
