"""Environments that come with agentrl. Importing this package imports none of them.

- `reasoning/*`: a question and an answer (`agentrl_envs.reasoning`);
- `code/*`: the same questions with a Python interpreter (`agentrl_envs.code`).
"""

from agentrl.registry import register
from agentrl_envs.families import FAMILIES, camel

__all__ = ["FAMILIES", "register_envs"]

_KINDS = {
    "reasoning": ("agentrl_envs.reasoning:ReasoningEnv", "answered directly"),
    "code": ("agentrl_envs.code:CodeEnv", "with a stateful Python tool"),
}


def register_envs() -> None:
    """Register `reasoning/<Family>-v0` and `code/<Family>-v0` of every family, and both mixes.

    The mixes get their `families` when they are made. Called through the entry-point group
    `agentrl.envs`, once per process.
    """
    for kind, (entry_point, how) in _KINDS.items():
        register(
            f"{kind}/Mix-v0",
            entry_point,
            description=f"any of reasoning-gym's families, {how}; needs families=...",
        )
        for family in FAMILIES:
            register(
                f"{kind}/{camel(family)}-v0",
                entry_point,
                kwargs={"families": family},
                description=f"reasoning-gym's {family}, {how}",
            )
