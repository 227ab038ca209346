"""Names of the slots of `learn`, without what their methods import."""

from agentrl.errors import ConfigError

SLOT_NAMES = (
    "group_reward",
    "reward_shaping",
    "advantage",
    "loss",
    "proximal",
    "correction",
    "rejection",
    "selection",
    "hint",
)
"""All slots, in the order in which `docs/methods.md` explains them."""


def check_slot(name: str) -> None:
    """Raise `ConfigError` for a name that no slot has."""
    if name not in SLOT_NAMES:
        raise ConfigError(f"{name!r} is not a slot; the slots are {', '.join(SLOT_NAMES)}")
