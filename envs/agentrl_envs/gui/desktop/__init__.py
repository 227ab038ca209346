"""Desktops: Xvfb, a window manager and programs in bubblewrap, driven by their first process."""

from agentrl_envs.gui.desktop.desktop import Desktop, Picture
from agentrl_envs.gui.desktop.pool import DesktopPool
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_envs.gui.desktop.stage import BARE, Stage

__all__ = ["BARE", "Desktop", "DesktopPool", "DesktopSettings", "Picture", "Stage"]
