"""Environments that come with agentrl. Importing this package imports none of them.

- `reasoning/*`: a question and an answer (`agentrl_envs.reasoning`);
- `code/*`: the same questions with a Python interpreter (`agentrl_envs.code`);
- `programs/*`: a program to write, graded apart on hidden inputs (`agentrl_envs.programs`);
- `retrieval/*`: questions that a corpus answers, with search tools (`agentrl_envs.retrieval`);
- `recorded/Expert-v0`: an expert's recorded trajectories to follow (`agentrl_envs.recorded`).
"""

from agentrl.registry import register
from agentrl_envs.families import FAMILIES, PROGRAMS, camel

__all__ = ["FAMILIES", "PROGRAMS", "register_envs"]

_KINDS = {
    "reasoning": ("agentrl_envs.reasoning:ReasoningEnv", "answered directly"),
    "code": ("agentrl_envs.code:CodeEnv", "with a stateful Python tool"),
}
_PROGRAMS = "agentrl_envs.programs:ProgramsEnv"


def register_envs() -> None:
    """Register `<kind>/<Family>-v0` of every family, and the mix of every kind.

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
    register(
        "programs/Mix-v0",
        _PROGRAMS,
        description="any of the programming families, graded on hidden inputs; needs families=...",
    )
    register(
        "recorded/Expert-v0",
        "agentrl_envs.recorded:RecordedEnv",
        description="recorded expert trajectories, patched where left; needs recordings=...",
    )
    register(
        "retrieval/Wiki-v0",
        "agentrl_envs.retrieval:WikiEnv",
        description="questions of one to four facts about a made-up world, with search tools",
    )
    register(
        "retrieval/Corpus-v0",
        "agentrl_envs.retrieval:CorpusEnv",
        description="your questions about your texts, with search tools; needs corpus, questions",
    )
    for family in PROGRAMS:
        register(
            f"programs/{camel(family)}-v0",
            _PROGRAMS,
            kwargs={"families": family},
            description=f"write a program: {family}, graded on hidden inputs",
        )
