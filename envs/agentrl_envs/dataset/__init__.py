"""Data sets as environments, and what TRL trains on: docs/datasets.md."""

from agentrl_envs.dataset.env import DatasetEnv

__all__ = ["DatasetEnv"]
