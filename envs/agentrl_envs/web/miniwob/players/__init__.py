"""Players of the families of MiniWoB++, from what an agent sees and nothing else."""

from agentrl_envs.web.miniwob.players import clicking, dragging, filling, searching
from agentrl_envs.web.miniwob.players.scene import PLAYERS, scene_of

__all__ = ["PLAYERS", "clicking", "dragging", "filling", "scene_of", "searching"]
