"""Chromium without a network: its pages are answered by the worlds of their episodes."""

from agentrl_envs.web.browser.context import EpisodeContext, PageScreen
from agentrl_envs.web.browser.page import BrowserPage
from agentrl_envs.web.browser.pool import BrowserPool
from agentrl_envs.web.browser.settings import BrowserSettings, Isolation

__all__ = [
    "BrowserPage",
    "BrowserPool",
    "BrowserSettings",
    "EpisodeContext",
    "Isolation",
    "PageScreen",
]
