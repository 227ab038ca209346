"""Small screens to look at: what is asked for can only be seen. Drawn with Pillow, no browser."""

from agentrl_envs.visual.env import SeeButtonEnv

__all__ = ["SeeButtonEnv"]
