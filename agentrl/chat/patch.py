"""A turn the environment replaced: the patch as tokens, and the context in which it is thought of.

Source: UI-S1's patch module (arXiv 2509.11543, section 3.3).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.env import Action, Patch
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.trajectory import Tree

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer


@runtime_checkable
class ChatWriter(Protocol):
    """Writer of the tokens that a policy would have sampled."""

    def write(self, action: Action) -> tuple[int, ...]:
        """Return an action as the tokens of a turn, with the one that ends it."""
        ...


def ask_for_thought(chat: "ChatRenderer", patch: Patch, *, ended: bool) -> tuple[int, ...]:
    """Return the tokens put behind the policy's own turn to ask for its thought."""
    segments = chat.reply((Message("user", patch.hint),), ended=ended)
    return tuple(token for segment in segments for token in segment.token_ids)


def write_patch(chat: "ChatRenderer", patch: Patch, thought: Sequence[int]) -> tuple[int, ...]:
    """Return the patch as the tokens of a turn, with what the policy sampled as its thought.

    Calls in the thought are left out. Raises `ConfigError` for a chat format that cannot write.
    """
    if not isinstance(chat, ChatWriter):
        raise ConfigError(
            f"the environment patches a turn, but {type(chat).__name__} cannot render one; add a "
            "method write(action) -> token ids, or disable patches"
        )
    thought_text = chat.parse(thought).text.strip() if thought else ""
    if not thought_text:
        return chat.write(patch.action)
    text = f"{thought_text}\n{patch.action.text}" if patch.action.text else thought_text
    return chat.write(replace(patch.action, text=text))


def nodes_of_turn(tree: Tree, at: int | None, turn: int) -> int:
    """Return the number of trailing nodes on the way to `at` that the policy sampled in a turn."""
    count = 0
    while at is not None and (tree.node(at).source, tree.node(at).turn) == ("sampled", turn):
        count += 1
        at = tree.node(at).parent
    return count
