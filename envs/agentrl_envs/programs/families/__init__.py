"""Every family of programming tasks, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from agentrl_envs.programs.families import codes, lists, numbers, simulations, texts
from agentrl_envs.programs.family import ProgramFamily

FAMILIES: Mapping[str, ProgramFamily] = MappingProxyType(
    {
        family.name: family
        for family in (
            *texts.FAMILIES,
            *codes.FAMILIES,
            *lists.FAMILIES,
            *numbers.FAMILIES,
            *simulations.FAMILIES,
        )
    }
)
"""In the order they are documented in."""
