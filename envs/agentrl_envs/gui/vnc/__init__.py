"""A person at a desktop, over VNC: what the hands do becomes actions of the `computer` tool."""

from agentrl_envs.gui.vnc.seat import VncPlayer

__all__ = ["VncPlayer"]
