"""Questions that a corpus answers, with tools to search it."""

from agentrl_envs.retrieval.env import CorpusEnv, WikiEnv

__all__ = ["CorpusEnv", "WikiEnv"]
