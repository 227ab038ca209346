"""Tasks in Harbor's format (terminal-bench 2 and others): folders with an image and a verifier."""

from agentrl_envs.harbor.env import HarborEnv
from agentrl_envs.harbor.inspection import inspect_harbor

__all__ = ["HarborEnv", "inspect_harbor"]
