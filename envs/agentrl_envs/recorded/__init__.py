"""Recorded expert trajectories as an environment: semi-online reinforcement learning."""

from agentrl_envs.recorded.env import RecordedEnv

__all__ = ["RecordedEnv"]
