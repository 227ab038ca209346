"""Trajectories that others recorded, as recordings: `python -m agentrl_envs.recorded.convert`."""

from agentrl_envs.recorded.convert.android_control import android_control
from agentrl_envs.recorded.convert.osworld import osworld

__all__ = ["android_control", "osworld"]
