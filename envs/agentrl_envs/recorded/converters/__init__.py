"""Trajectories that others recorded, as recordings; `recorded.convert` is the command."""

from agentrl_envs.recorded.converters.android_control import android_control
from agentrl_envs.recorded.converters.osworld import osworld

__all__ = ["android_control", "osworld"]
