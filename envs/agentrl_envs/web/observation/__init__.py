"""Observations of a page, and functions to read them back."""

from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.accessibility.reading import ObservedPage, read
from agentrl_envs.web.observation.look import look
from agentrl_envs.web.observation.view import Kind, PageObservationOptions, PageProbe, PageView

__all__ = [
    "AccessibilityNode",
    "Kind",
    "ObservedPage",
    "PageObservationOptions",
    "PageProbe",
    "PageView",
    "look",
    "read",
]
