"""A person at a desktop, over VNC: what the hands do becomes actions of the `computer` tool."""

from agentrl_envs.gui.seat.seat import Seat

__all__ = ["Seat"]
