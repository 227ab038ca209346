"""Observations of a page, and functions to read them back."""

from agentrl_envs.web.observation.look import look
from agentrl_envs.web.observation.node import Node
from agentrl_envs.web.observation.reading import Page, read
from agentrl_envs.web.observation.view import Eye, Kind, View, Wants

__all__ = ["Eye", "Kind", "Node", "Page", "View", "Wants", "look", "read"]
