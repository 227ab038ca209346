"""Desktops: Xvfb, a window manager and programs in bubblewrap, driven by their first process."""

from agentrl_envs.gui.desktop.desktop import DesktopSession, ScreenImage
from agentrl_envs.gui.desktop.pool import DesktopPool
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_envs.gui.desktop.stage import BARE, DesktopStage

__all__ = [
    "BARE",
    "DesktopPool",
    "DesktopSession",
    "DesktopSettings",
    "DesktopStage",
    "ScreenImage",
]
