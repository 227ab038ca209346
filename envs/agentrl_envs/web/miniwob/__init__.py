"""MiniWoB++: 130 families of small web pages, each with a problem per seed."""

from agentrl_envs.web.miniwob.pack import MiniWobPack, task_of

__all__ = ["MiniWobPack", "task_of"]
