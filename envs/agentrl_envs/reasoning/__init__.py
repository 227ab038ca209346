"""reasoning-gym's procedural task families: one question, one answer, its own verifier."""

from agentrl_envs.reasoning.env import ReasoningEnv

__all__ = ["ReasoningEnv"]
