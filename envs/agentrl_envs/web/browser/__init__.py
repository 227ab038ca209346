"""Chromium without a network: its pages are answered by the worlds of their episodes."""

from agentrl_envs.web.browser.pool import BrowserPool
from agentrl_envs.web.browser.settings import BrowserSettings, Isolation
from agentrl_envs.web.browser.tab import Tab
from agentrl_envs.web.browser.visit import Screen, Visit

__all__ = ["BrowserPool", "BrowserSettings", "Isolation", "Screen", "Tab", "Visit"]
