"""Tasks in OSWorld's format on desktops of ours: those that need no virtual machine."""

from agentrl_envs.gui.osworld.pack import OsworldPack, osworld_pack
from agentrl_envs.gui.osworld.reading import OsworldTasks, read_tasks

__all__ = ["OsworldPack", "OsworldTasks", "osworld_pack", "read_tasks"]
