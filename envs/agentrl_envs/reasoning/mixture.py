"""Which families an environment draws from, as its configuration names them."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl_envs.reasoning.family import ReasoningFamily, require_family

Families = str | Sequence[str] | Mapping[str, Mapping[str, Any] | None]
"""A name, several names, or names with reasoning-gym's parameters of each."""
Difficulty = int | Mapping[str, int] | None
"""A level for every family, a level per family, or reasoning-gym's default parameters."""


def mixture(
    families: Families, difficulty: Difficulty = None, heldout_families: Families = ()
) -> dict[str, ReasoningFamily]:
    """Return the families by name, those of both splits first, in the order they are named.

    Equal families are one object for all environments of the process: some load data files.
    """
    params_by_name, heldout_params = _read_params(families), _read_params(heldout_families)
    if not params_by_name:
        raise ConfigError(
            "families is empty; name at least one task family, such as families: chain_sum"
        )
    if both := [name for name in params_by_name if name in heldout_params]:
        raise ConfigError(
            f"{', '.join(both)} is in families and in heldout_families, of which nothing is "
            "trained on; name it in one of them"
        )
    params_by_name |= heldout_params
    levels = (
        difficulty if isinstance(difficulty, Mapping) else dict.fromkeys(params_by_name, difficulty)
    )
    for name in levels:
        if name not in params_by_name:
            raise ConfigError(
                f"difficulty names the task family {require_family(name)!r}, which is not among "
                f"families: {', '.join(params_by_name)}"
            )
    return {
        name: family_of(name, params, levels.get(name)) for name, params in params_by_name.items()
    }


def names_of(families: Families) -> tuple[str, ...]:
    """Return the names of families."""
    return tuple(_read_params(families))


def _read_params(families: Families) -> dict[str, Mapping[str, Any]]:
    if isinstance(families, str):
        return {require_family(families): {}}
    if isinstance(families, Mapping):
        return {require_family(name): params or {} for name, params in families.items()}
    return {require_family(name): {} for name in families}


_SHARED: dict[tuple[str, str, int | None], ReasoningFamily] = {}


def family_of(name: str, params: Mapping[str, Any], difficulty: int | None) -> ReasoningFamily:
    """Return a family; equal arguments give one object."""
    key = (name, repr(sorted(params.items())), difficulty)
    if key not in _SHARED:
        _SHARED[key] = ReasoningFamily(name, params, difficulty=difficulty)
    return _SHARED[key]
