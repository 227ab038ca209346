"""Earlier turns without their thinking, for chat formats that drop it when a user speaks again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.chat.renderer import TokenSegment
from agentrl.message import Message
from agentrl.trajectory import Node, Tree

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer


@runtime_checkable
class TurnRewriter(Protocol):
    """Chat format whose contexts show the turns of the past in another way than the last one."""

    @property
    def rewrites_turns(self) -> bool:
        """Return whether it has anything to rewrite at all."""
        ...

    def rewrite_turns(self, parts: Sequence[TokenSegment]) -> Sequence[TokenSegment] | None:
        """Return a context as it stands once a user speaks again; None for one that stays."""
        ...


@runtime_checkable
class TurnEnds(Protocol):
    """Chat format in which the token that ends a turn depends on what follows it."""

    def ends_turn(self, token_id: int, messages: Sequence[Message]) -> bool:
        """Return whether a turn that ends with this token needs no other end before `messages`."""
        ...


def rewrite_context(
    chat: "ChatRenderer", tree: Tree, node: int, messages: Sequence[Message]
) -> TokenSegment | None:
    """Return the context at `node` in which these messages follow, without the thinking of its
    turns.

    None where it stays as it is: there is no message of a user, or nothing to drop. The context is
    walked only where a user speaks and the chat format rewrites turns.
    """
    has_user = any(message.role == "user" for message in messages)
    if not has_user or not isinstance(chat, TurnRewriter) or not chat.rewrites_turns:
        return None
    rewritten = chat.rewrite_turns(_join_turns(tree.context(node)))
    if rewritten is None:
        return None
    tokens: list[int] = []
    spans: list[tuple[int, int]] = []
    for part in rewritten:
        spans += [(first + len(tokens), last + len(tokens)) for first, last in part.image_spans]
        tokens += part.token_ids
    images = tuple(image for part in rewritten for image in part.images)
    return TokenSegment("prompt", tuple(tokens), images, tuple(spans))


def _join_turns(context: Sequence[Node]) -> list[TokenSegment]:
    """Return the segments of a context; a turn that was sampled in several pieces is one."""
    parts: list[TokenSegment] = []
    last_turn = -1
    for node in context:
        spoken = node.source in ("sampled", "forced")
        if spoken and node.turn == last_turn and parts:
            parts[-1] = TokenSegment("sampled", (*parts[-1].token_ids, *node.token_ids))
            continue
        last_turn = node.turn if spoken else -1
        parts.append(TokenSegment(node.source, node.token_ids, node.images, node.image_spans))
    return parts
