"""Importing this shows every environment of every installed distribution to Gymnasium.

    gymnasium.make("agentrl.gymnasium_envs:reasoning/ChainSum-v0")

Gymnasium imports what stands before the colon, so nothing else is needed before it.
"""

from agentrl.gym.synchronous import show_to_gymnasium
from agentrl.registry import registry

IDS: tuple[str, ...] = tuple(registry)
"""Ids known to Gymnasium now. Listing the registry is what asks the distributions."""
for _id in IDS:
    show_to_gymnasium(_id)
