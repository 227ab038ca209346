"""Desktops as environments: a real X server, real programs, checkers that look at what they did."""

from agentrl_envs.gui.env import GuiEnv

__all__ = ["GuiEnv"]
