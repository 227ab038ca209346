"""Web pages as environments: a real browser, pages that the host serves, checkers that look."""

from agentrl_envs.web.env import WebEnv

__all__ = ["WebEnv"]
